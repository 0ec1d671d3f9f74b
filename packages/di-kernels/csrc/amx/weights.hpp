// Blocks of a packed weight (weight_layout.hpp) as tiles of bfloat16 pairs with their scales in them. Only
// for sources of csrc/amx.
//
// A product of E2M1 or E4M3 with a power of two is exact in bfloat16, but where it leaves its range: from
// 2^128 on it is infinite; below 2^-126 it is zero, and the scale 2^-127 is, since all of it runs under
// FlushedSubnormals.
#pragma once

#include "amx/ask_line.hpp"
#include "amx/tiles.hpp"
#include "simd/decode.hpp"
#include "simd/linear.hpp"
#include "simd/raised_e2m1.hpp"

namespace di::amx {
namespace {

using namespace simd::amx;

// Asks for lines while block b of a group as stored is computed with, `w` counts its words: those of the next
// group come to the second cache in the order in which they lie in memory, the next ones of this group's rows
// from there to the first. A line that waits for memory holds a place that loads from the second cache need.
template <WeightFormat F>
DI_INLINE auto ask_stored(const linear_simd::Codes& group, int64_t row_bytes, int64_t b) {
  constexpr int64_t kWords = words_of_block(F), kBlocks = 16 / kWords;  // of a line
  const uint8_t* const later = group.next + b * block_bytes(F);
  const uint8_t* const soon = group.codes + b % kBlocks * kWords * row_bytes + (b / kBlocks + 1) * 64;
  return [=](int w) __attribute__((always_inline)) {
    ask_for_second_cache(later + 64 * w);
    ask_for_first_cache(soon + w * row_bytes);
  };
}

// The words of a block, one of every row in each.
template <WeightFormat F, bool kStored>
struct Words;

template <WeightFormat F>
struct Words<F, false> {
  const uint8_t* codes;

  [[gnu::always_inline]] u32x16 at(int w) const { return load_once(codes + 64 * w); }
};

// Rows lie `row_bytes` apart.
template <WeightFormat F>
struct Words<F, true> {
  u32x16 words[words_of_block(F)];

  [[gnu::always_inline]] Words(const uint8_t* codes, int64_t row_bytes) {
#pragma GCC unroll 4
    for (int w = 0; w < words_of_block(F); w += 4) {
      transpose_words([&](int r) { return codes + r * row_bytes + 4 * w; }, words + w);
    }
  }
  [[gnu::always_inline]] u32x16 at(int w) const { return words[w]; }
};

// Pair I of the codes of a word comes to the low ends of its halves. Not by shifts: they would take the port
// of which the permutation and the subtraction of scaled_e2m1() take all.
template <bool kStored, uint64_t I>
DI_INLINE __m512i codes_to_low_ends(__m512i words) {
  if constexpr (!kStored && I == 0) return words;
  constexpr uint64_t kLow = kStored ? 8 * I : 4 * I, kHigh = kStored ? kLow + 4 : kLow + 16;
  constexpr uint64_t kWord = kLow | kHigh << 16, kFrom = kWord | (kWord + 0x00200020u) << 32;
  return _mm512_multishift_epi64_epi8(_mm512_set1_epi64(static_cast<long long>(kFrom)), words);
}

// A pair of bfloat16 numbers in every lane, times the scale of the lane.
DI_INLINE u32x16 scaled_pairs(u32x16 pair, f32x16 scale) {
  const u32x16 odd = bits(floats(pair & 0xffff0000u) * scale), even = bits(floats(pair << 16) * scale);
  return (odd & 0xffff0000u) | (even >> 16);
}

// By value: words that had an address would be stored for every block.
template <bool kStored>
[[gnu::noinline]] void decode_mxfp4_of_any_scale(Words<WeightFormat::mxfp4, kStored> words,
                                                 const uint8_t* scales, uint8_t* tile) {
  const f32x16 scale = decode_scales<WeightFormat::mxfp4>(scales, 0, true);
  for (int w = 0; w < 4; ++w) {
    const u32x16 word = kStored ? split_halves<WeightFormat::mxfp4>(words.at(w)) : words.at(w);
    u32x16 pair[4];
    decode_words<WeightFormat::mxfp4>(word, pair);
    for (int i = 0; i < 4; ++i) store(tile + 64 * (4 * w + i), scaled_pairs(pair[i], scale));
  }
}

template <bool kStored, class Ask>
DI_INLINE void decode_block(const Words<WeightFormat::mxfp4, kStored>& words, const uint8_t* scales,
                            const Ask& ask, uint8_t* tile) {
  const u32x16 byte = (u32x16)_mm512_maskz_cvtepu8_epi32(0xffff, (__m128i)load<u8x16>(scales));
  if (!keep_e2m1_normal(byte)) return decode_mxfp4_of_any_scale(words, scales, tile);
  const __m512i lowered = lowered_by(byte);
  const auto place = [&](int pair, __m512i code) __attribute__((always_inline)) {
    store(tile + 64 * pair, scaled_e2m1(code, lowered));
  };
#pragma GCC unroll 4
  for (int w = 0; w < 4; ++w) {
    const auto word = (__m512i)words.at(w);
    ask(w);
    place(4 * w, codes_to_low_ends<kStored, 0>(word));
    place(4 * w + 1, codes_to_low_ends<kStored, 1>(word));
    place(4 * w + 2, codes_to_low_ends<kStored, 2>(word));
    place(4 * w + 3, codes_to_low_ends<kStored, 3>(word));
  }
}

// The magnitudes of E4M3 times every scale.
struct ScaledE4m3 {
  E4m3Bytes of_scale[256];
};
constexpr ScaledE4m3 scaled_e4m3() {
  ScaledE4m3 t{};
  for (int scale = 0; scale < 256; ++scale) {
    for (int m = 0; m < 128; ++m) {
      const int word = kE4m3Words.magnitude[m], exponent = (word >> 7) + scale - 127;
      const bool zero = scale == 0 || exponent <= 0, nan = scale == 255 || m == 127;
      const int value = nan                 ? 0x7fc0
                        : word == 0 || zero ? 0
                        : exponent >= 255   ? 0x7f80
                                            : exponent << 7 | (word & 0x7f);
      t.of_scale[scale].set(m, static_cast<uint16_t>(value));
    }
  }
  return t;
}
constexpr ScaledE4m3 kScaledE4m3 = scaled_e4m3();

template <bool kStored, class Ask>
DI_INLINE void decode_block(const Words<WeightFormat::fp8, kStored>& words, const uint8_t* scales,
                            const Ask& ask, uint8_t* tile) {
  const E4m3Bytes& table = kScaledE4m3.of_scale[*scales];
#pragma GCC unroll 8
  for (int w = 0; w < 8; ++w) {
    u32x16 pair[2];
    ask(w);
    decode_e4m3(kStored ? split_halves<WeightFormat::fp8>(words.at(w)) : words.at(w), table, pair);
    store(tile + 128 * w, pair[0]);
    store(tile + 128 * w + 64, pair[1]);
  }
}

// A packed one is a tile as it lies.
template <bool kStored, class Ask>
DI_INLINE void decode_block(const Words<WeightFormat::bfloat16, kStored>& words, const uint8_t*,
                            const Ask& ask, uint8_t* tile) {
#pragma GCC unroll 16
  for (int w = 0; w < 16; ++w) {
    ask(w);
    if constexpr (kStored) store(tile + 64 * w, words.at(w));
  }
}

}  // namespace
}  // namespace di::amx
