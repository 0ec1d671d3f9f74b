#include "simd/indexer.hpp"

#include "amx/ask_line.hpp"
#include "amx/tiles.hpp"
#include "simd/simd.hpp"

namespace di::indexer_simd::amx {
namespace {

using namespace simd::amx;
using namespace ::di::amx;

constexpr int64_t kMeeting = 32;  // columns that meet some heads in tiles
constexpr int64_t kColumnBytes = 4 * kColumns;

// Dots of a tile of heads with kMeeting columns, 16 of them behind each other.
struct Dots {
  alignas(64) float of[kMeeting / 16][kTileRows][16];
};

// Begins them in the tiles Sum and Sum + 1.
template <int Sum>
DI_INLINE void begin_dots(const uint32_t* q, int64_t pairs, const uint32_t* tile) {
  zero_tile<Sum>();
  zero_tile<Sum + 1>();
  for (int64_t p = 0; p < pairs; p += kPairs) {
    load_tile<4>(q + p, 4 * pairs);
    load_tile<6>(tile + p * kColumns, kColumnBytes);
    dot_tiles<Sum, 4, 6>();
    load_tile<7>(tile + p * kColumns + 16, kColumnBytes);
    dot_tiles<Sum + 1, 4, 7>();
  }
}

template <int Sum>
DI_INLINE void end_dots(Dots& dots) {
  store_tile<Sum>(dots.of[0]);
  store_tile<Sum + 1>(dots.of[1]);
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

// Tiles of heads meet kMeeting columns, then the next ones. A tile of the last heads begins with some of
// those before it, which are not added again.
struct Meetings {
  const uint32_t* q;
  const float* weights;
  int64_t heads, rows, head_tiles, pairs;
  const uint32_t* tile;
  float* out;
  LaterLines later;

  [[gnu::always_inline]] int64_t count() const { return head_tiles * (kColumns / kMeeting); }
  [[gnu::always_inline]] int64_t column(int64_t i) const { return i / head_tiles * kMeeting; }
  [[gnu::always_inline]] int64_t head(int64_t i) const { return i % head_tiles * rows; }
  [[gnu::always_inline]] int64_t first(int64_t i) const {
    return head(i) < heads - rows ? head(i) : heads - rows;
  }

  template <int Sum>
  [[gnu::always_inline]] void begin(int64_t i) const {
    begin_dots<Sum>(q + first(i) * pairs, pairs, tile + column(i));
  }

  template <int Sum>
  [[gnu::always_inline]] void end(int64_t i, Dots& dots, Sums& sums) {
    end_dots<Sum>(dots);
    const int64_t begin = first(i), end = begin + rows;
    for (int64_t h = head(i); h < end; ++h) {
      ask_next(later);
      sums.add(load<f32x16>(dots.of[0][h - begin]), load<f32x16>(dots.of[1][h - begin]), weights[h]);
    }
    if (end < heads) return;
    sums.put(out + column(i));
    sums = Sums();
  }
};
static_assert(kColumns / kMeeting % 2 == 0);  // two meetings take turns

// The dots of a meeting are stored while those of the next one are computed.
void scores_bf16(const uint32_t* q, const float* weights, int64_t heads, int64_t pairs, const uint32_t* tile,
                 const LaterLines& later, float* out) {
  if (heads == 0) {
    std::memset(out, 0, kColumns * sizeof(float));
    return;
  }
  const int64_t rows = heads < kTileRows ? heads : kTileRows;
  configure_tiles(rows);
  Meetings meetings{q, weights, heads, rows, (heads + rows - 1) / rows, pairs, tile, out, later};
  Dots dots[2];
  Sums sums;
  meetings.begin<0>(0);
  for (int64_t i = 0; i < meetings.count(); i += 2) {
    meetings.begin<2>(i + 1);
    meetings.end<0>(i, dots[0], sums);
    if (i + 2 < meetings.count()) meetings.begin<0>(i + 2);
    meetings.end<2>(i + 1, dots[1], sums);
  }
}

// What is as on avx512bf16 is called, not copied: its table is no constant when this one is built.
constexpr Table kTable = {.decode_mxfp4 = [](auto... a) { avx512bf16::table.decode_mxfp4(a...); },
                          .scores_bf16 = scores_bf16,
                          .scores_float = [](auto... a) { avx512bf16::table.scores_float(a...); }};

}  // namespace

const Table table = kTable;

}  // namespace di::indexer_simd::amx
