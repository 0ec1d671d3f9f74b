#include "simd/indexer.hpp"

#include "amx/tiles.hpp"
#include "simd/simd.hpp"

namespace di::indexer_simd::amx {
namespace {

using namespace simd::amx;
using namespace ::di::amx;

constexpr int64_t kMeeting = 32;  // columns that meet some heads in tiles
constexpr int64_t kColumnBytes = 4 * kColumns;

// Dots of the heads of one tile or two with kMeeting columns, 16 of them behind each other.
struct Dots {
  alignas(64) float of[2][kMeeting / 16][kTileRows][16];
};

template <int R>
DI_INLINE void dot_heads(const uint32_t* first, const uint32_t* second, int64_t pairs, const uint32_t* tile,
                         Dots& dots) {
  zero_tile<0>();
  zero_tile<1>();
  if constexpr (R > 1) zero_tile<2>();
  if constexpr (R > 1) zero_tile<3>();
  for (int64_t p = 0; p < pairs; p += kPairs) {
    load_tile<6>(tile + p * kColumns, kColumnBytes);
    load_tile<7>(tile + p * kColumns + 16, kColumnBytes);
    load_tile<4>(first + p, 4 * pairs);
    dot_tiles<0, 4, 6>();
    dot_tiles<1, 4, 7>();
    if constexpr (R > 1) {
      load_tile<5>(second + p, 4 * pairs);
      dot_tiles<2, 5, 6>();
      dot_tiles<3, 5, 7>();
    }
  }
  store_tile<0>(dots.of[0][0]);
  store_tile<1>(dots.of[0][1]);
  if constexpr (R > 1) store_tile<2>(dots.of[1][0]);
  if constexpr (R > 1) store_tile<3>(dots.of[1][1]);
}

// Nearest bfloat16 numbers of two vectors: those at even and at odd places of both behind each other.
struct RoundedPair {
  f32x16 even, odd;

  DI_INLINE RoundedPair rounded(f32x16 low, f32x16 high) {
    const auto both = (u32x16)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
    return {floats(both << 16), floats(both & 0xffff0000u)};
  }
};

// Sums of kMeeting columns, in the order in which two roundings leave them.
class Sums {
 public:
  // One head: relu(dot) * weight is added; dot and product are rounded.
  [[gnu::always_inline]] void add(f32x16 low, f32x16 high, float weight) {
    const RoundedPair dots = RoundedPair::rounded(rectified(low), rectified(high));
    const RoundedPair products = RoundedPair::rounded(dots.even * weight, dots.odd * weight);
    even_ += products.even;
    odd_ += products.odd;
  }

  // Column 4 a + b is lane a of even_, a + 8 of it, a of odd_, and a + 8 of it.
  [[gnu::always_inline]] void put(float* out) const {
    constexpr i32x16 kLane = {0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27};
    store(out, finished(kLane));
    store(out + 16, finished(kLane + 4));
  }

 private:
  DI_INLINE f32x16 rectified(f32x16 x) {  // a NaN stays one
    return (f32x16)_mm512_max_ps(_mm512_setzero_ps(), (__m512)x);
  }
  [[gnu::always_inline]] f32x16 finished(i32x16 lanes) const {
    return round_bf16((f32x16)_mm512_permutex2var_ps((__m512)even_, (__m512i)lanes, (__m512)odd_));
  }

  f32x16 even_{}, odd_{};
};

void decode_mxfp4(const uint8_t* const* codes, const uint8_t* const* scales, int64_t dim, uint32_t* tile) {
  avx512bf16::table.decode_mxfp4(codes, scales, dim, tile);
}

void scores_bf16(const uint32_t* q, const float* weights, int64_t heads, int64_t pairs, const uint32_t* tile,
                 float* out) {
  const int64_t rows = heads < kTileRows ? heads : kTileRows;
  const Tiles tiles(rows);
  Dots dots;
  for (int64_t c = 0; c < kColumns; c += kMeeting) {
    Sums sums;
    for (int64_t h = 0; h < heads; h += 2 * rows) {
      // Tiles of the last heads begin with some that were added before.
      const int64_t last = heads - rows, first = h < last ? h : last;
      const int64_t second = h + rows < last ? h + rows : last;
      if (h + rows < heads) {
        dot_heads<2>(q + first * pairs, q + second * pairs, pairs, tile + c, dots);
      } else {
        dot_heads<1>(q + first * pairs, nullptr, pairs, tile + c, dots);
      }
      for (int64_t i = h; i < h + 2 * rows && i < heads; ++i) {
        const auto& [low, high] = dots.of[i >= h + rows];
        const int64_t row = i - (i < h + rows ? first : second);
        sums.add(load<f32x16>(low[row]), load<f32x16>(high[row]), weights[i]);
      }
    }
    sums.put(out + c);
  }
}

void scores_float(const float* q, const float* weights, int64_t heads, int64_t dim, const float* tile,
                  float* out) {
  avx512bf16::table.scores_float(q, weights, heads, dim, tile, out);
}

}  // namespace

const Table table = {.decode_mxfp4 = decode_mxfp4, .scores_bf16 = scores_bf16, .scores_float = scores_float};

}  // namespace di::indexer_simd::amx
