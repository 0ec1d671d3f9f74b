#include "simd/attention.hpp"

#include "amx/tiles.hpp"
#include "simd/transpose.hpp"

namespace di::attention_simd::amx {
namespace {

using namespace simd::amx;
using namespace ::di::amx;

constexpr int64_t kStepWords = 16;  // of a dot of two tiles
constexpr int64_t kStepKeys = 32;   // of two tiles in a score, and of kStepWords words of values
static_assert(kStepKeys == 2 * kTileRows && kStepKeys == 2 * kStepWords && kPiece % kStepKeys == 0);
static_assert(kHeads == 2 * kTileRows && kTile % 32 == 0);
constexpr int64_t kHeadBytes = 4 * kHeads, kValueBytes = 4 * kTile;

// kStepKeys keys and kHeads heads.
DI_INLINE void score_keys(const uint32_t* q, const uint32_t* keys, int64_t words, int64_t key_stride,
                          float* logits, int64_t lanes) {
  const uint32_t* const behind = keys + kTileRows * key_stride;
  zero_tile<0>();
  zero_tile<1>();
  zero_tile<2>();
  zero_tile<3>();
  for (int64_t w = 0; w < words; w += kStepWords) {
    load_tile<4>(keys + w, 4 * key_stride);
    load_tile<6>(q + w * kHeads, kHeadBytes);
    dot_tiles<0, 4, 6>();
    load_tile<7>(q + w * kHeads + 16, kHeadBytes);
    dot_tiles<1, 4, 7>();
    load_tile<5>(behind + w, 4 * key_stride);
    dot_tiles<2, 5, 6>();
    dot_tiles<3, 5, 7>();
  }
  store_tile<0>(logits, 4 * lanes);
  store_tile<1>(logits + 16, 4 * lanes);
  store_tile<2>(logits + kTileRows * lanes, 4 * lanes);
  store_tile<3>(logits + kTileRows * lanes + 16, 4 * lanes);
}

void score(const uint32_t* q, int64_t lanes, const uint32_t* keys, int64_t words, int64_t key_stride,
           int64_t count, float scale, float* logits) {
  configure_tiles(kTileRows);
  for (int64_t i = 0; i < count; i += kStepKeys) {
    for (int64_t h = 0; h < lanes; h += kHeads) {
      score_keys(q + h * words, keys + i * key_stride, words, key_stride, logits + i * lanes + h, lanes);
    }
  }
  for (int64_t i = 0; i < count * lanes; i += 16) store(logits + i, load<f32x16>(logits + i) * scale);
}

// Weights of 16 heads and kStepKeys keys, a pair of keys after the other, become those of a head after the
// other, in the same place.
void fold(const float* logits, int64_t lanes, int64_t count, float* maximum, float* denominator,
          float* rescale, uint32_t* weights) {
  avx512bf16::table.b16.fold(logits, lanes, count, maximum, denominator, rescale, weights);
  const int64_t written = (count + 1) / 2, padded = (count + kStepKeys - 1) / kStepKeys * kStepWords;
  std::memset(weights + written * lanes, 0, static_cast<size_t>((padded - written) * lanes) * 4);
  for (int64_t w = 0; w < padded; w += kStepWords) {
    for (int64_t h = 0; h < lanes; h += 16) {
      uint32_t* const block = weights + w * lanes + h;
      __m512i rows[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) rows[i] = load<__m512i>(block + i * lanes);
      transpose_16(rows);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) store(block + i * lanes, rows[i]);
    }
  }
}

// Most factors are 1: a maximum rarely moves.
DI_INLINE void rescale_heads(const float* rescale, int64_t heads, float* sum) {
  for (int64_t h = 0; h < heads; ++h) {
    if (rescale[h] == 1.0f) continue;
    for (int64_t d = 0; d < kTile; d += 16) {
      float* const part = sum + h * kTile + d;
      store(part, load<f32x16>(part) * rescale[h]);
    }
  }
}

// kHeads heads and 32 elements.
DI_INLINE void sum_heads(const uint32_t* weights, int64_t lanes, const uint32_t* values, int64_t words,
                         float* sum) {
  float* const behind = sum + kTileRows * kTile;
  load_tile<0>(sum, kValueBytes);
  load_tile<1>(sum + 16, kValueBytes);
  load_tile<2>(behind, kValueBytes);
  load_tile<3>(behind + 16, kValueBytes);
  for (int64_t w = 0; w < words; w += kStepWords) {
    load_tile<4>(weights + w * lanes, 4 * lanes);
    load_tile<6>(values + w * kTile, kValueBytes);
    dot_tiles<0, 4, 6>();
    load_tile<7>(values + w * kTile + 16, kValueBytes);
    dot_tiles<1, 4, 7>();
    load_tile<5>(weights + w * lanes + 16, 4 * lanes);
    dot_tiles<2, 5, 6>();
    dot_tiles<3, 5, 7>();
  }
  store_tile<0>(sum, kValueBytes);
  store_tile<1>(sum + 16, kValueBytes);
  store_tile<2>(behind, kValueBytes);
  store_tile<3>(behind + 16, kValueBytes);
}

void accumulate(const uint32_t* weights, int64_t, int64_t lanes, const uint32_t* values, int64_t tiles,
                int64_t count, const float* rescale, float* sum) {
  configure_tiles(kTileRows);
  const int64_t words = (count + 1) / 2;
  for (int64_t t = 0; t < tiles; ++t) {
    for (int64_t h = 0; h < lanes; h += kHeads) {
      float* const part = sum + (t * lanes + h) * kTile;
      rescale_heads(rescale + h, kHeads, part);
      for (int64_t d = 0; d < kTile; d += 32) {
        sum_heads(weights + h, lanes, values + t * (kPiece / 2 * kTile) + d, words, part + d);
      }
    }
  }
}

// What is as on avx512bf16 is called, not copied: its table is no constant when this one is built.
constexpr Loops<float> kFloat = {
    .decode_fp8 = nullptr,
    .decode_fp4 = nullptr,
    .step_keys = kKeys,
    .step_words = 1,
    .load_queries = [](auto... a) { avx512bf16::table.f32.load_queries(a...); },
    .score = [](auto... a) { avx512bf16::table.f32.score(a...); },
    .fold = [](auto... a) { avx512bf16::table.f32.fold(a...); },
    .values = [](auto... a) { avx512bf16::table.f32.values(a...); },
    .accumulate = [](auto... a) { avx512bf16::table.f32.accumulate(a...); },
    .finish = [](auto... a) { avx512bf16::table.f32.finish(a...); },
};

constexpr Loops<bf16> kBf16 = {
    .decode_fp8 = [](auto... a) { avx512bf16::table.b16.decode_fp8(a...); },
    .decode_fp4 = [](auto... a) { avx512bf16::table.b16.decode_fp4(a...); },
    .step_keys = kStepKeys,
    .step_words = kStepWords,
    .load_queries = [](auto... a) { avx512bf16::table.b16.load_queries(a...); },
    .score = score,
    .fold = fold,
    .values = [](auto... a) { avx512bf16::table.b16.values(a...); },
    .accumulate = accumulate,
    .finish = [](auto... a) { avx512bf16::table.b16.finish(a...); },
};

}  // namespace

const Table table = {.f32 = kFloat, .b16 = kBf16};

}  // namespace di::attention_simd::amx
