// One row of inputs and groups, packed or as stored, in vectors: a tile of weights takes as long to load for
// one row as for sixteen, and what is decoded into it must pass through memory. The bits are those of tiles.
// Only for sources of csrc/amx.
//
// Even and odd inputs of a block are added up from zero, each in order by multiply-adds, then both sums, and
// that to the total. MXFP4 stays without its scale until then: a power of two changes no bit of what it
// multiplies, as long as neither the sums with it nor those without leave the normal numbers. Where they
// might, a block is decoded with its scale.
#pragma once

#include "amx/weights.hpp"
#include "simd/linear.hpp"

namespace di::amx {
namespace {

using linear_simd::Codes;
using linear_simd::OneRow;

constexpr int64_t kAheadOfRow = 8192;  // bytes from what is computed with to what is asked for

// Exponents of the smallest and the largest input that is not zero, as they stand in a number; 0 is one of
// nothing but zeros.
class Exponents {
 public:
  [[gnu::always_inline]] void add(u32x16 numbers) {
    const u32x16 exponent = numbers >> 23 & 255u;
    const __m512i below = (__m512i)(exponent - 1u);  // of zero: the largest number
    least_ = (u32x16)_mm512_maskz_min_epu32(0xffff, (__m512i)least_, below);
    most_ = (u32x16)_mm512_maskz_max_epu32(0xffff, (__m512i)most_, (__m512i)exponent);
  }

  // Sums of products with E2M1 are multiples of 2^(least - 135) and below 2^(most - 118): both must be normal
  // numbers, with and without the factor 2^(scale - 127). So must the weights be (keep_e2m1_normal).
  [[gnu::always_inline]] void allow(OneRow& row) const {
    uint32_t below = ~0u, highest = 0;
    for (int i = 0; i < 16; ++i) {
      below = least_[i] < below ? least_[i] : below;
      highest = most_[i] > highest ? most_[i] : highest;
    }
    const auto least = static_cast<int32_t>(below + 1u), most = static_cast<int32_t>(highest);
    const int32_t low = most > 0 && least < 134 ? 136 - least : 2;
    const int32_t high = most > 120 ? 372 - most : 252;
    const bool normal = most == 0 || (least >= 9 && most <= 245 && low <= high);
    row.least_scale = static_cast<uint32_t>(low);
    row.scales = normal ? static_cast<uint32_t>(high - low + 1) : 0;
  }

 private:
  u32x16 least_ = u32x16{} - 1u, most_{};
};

OneRow widen_row(const uint16_t* x, int64_t blocks, float* room) {
  OneRow row{room, 0, 0};
  Exponents exponents;
  for (int64_t i = 0; i < kBlock * blocks; i += 16) {
    const f32x16 numbers = widen_bf16(load<u16x16>(x + i));
    store(room + i, numbers);
    exponents.add(bits(numbers));
  }
  exponents.allow(row);
  return row;
}

// Sums of one block.
struct BlockSum {
  f32x16 even{}, odd{};

  [[gnu::always_inline]] void add(f32x16 even_weight, f32x16 odd_weight, const float* x) {
    even = fma(even_weight, splat(x[0]), even);
    odd = fma(odd_weight, splat(x[1]), odd);
    asm volatile("" : "+v"(even), "+v"(odd));  // before what is asked for behind it
  }
  [[gnu::always_inline]] void add_pair(u32x16 pair, const float* x) {
    add(floats(pair << 16), floats(pair & 0xffff0000u), x);
  }
};

// A block whose scales are in its weights; ask(w) asks for what comes later.
template <WeightFormat F, bool kStored, class Ask>
DI_INLINE f32x16 scaled_block(const Words<F, kStored>& words, const uint8_t* scales, const Ask& ask,
                              const float* x) {
  BlockSum sum;
#pragma GCC unroll 16
  for (int w = 0; w < words_of_block(F); ++w) {
    const u32x16 word = words.at(w);
    ask(w);
    if constexpr (F == WeightFormat::fp8) {
      u32x16 pair[2];
      decode_e4m3(kStored ? split_halves<F>(word) : word, kScaledE4m3.of_scale[*scales], pair);
      sum.add_pair(pair[0], x + 4 * w);
      sum.add_pair(pair[1], x + 4 * w + 2);
    } else {
      sum.add_pair(word, x + 2 * w);
    }
  }
  return sum.even + sum.odd;
}

template <bool kStored>
[[gnu::noinline]] f32x16 block_of_any_scale(Words<WeightFormat::mxfp4, kStored> words, const uint8_t* scales,
                                            const float* x) {
  alignas(64) uint8_t tile[kTileBytes];
  decode_mxfp4_of_any_scale(words, scales, tile);
  BlockSum sum;
  for (int p = 0; p < 16; ++p) sum.add_pair(load<u32x16>(tile + 64 * p), x + 2 * p);
  return sum.even + sum.odd;
}

// The values of E2M1, in a register: gcc would load them for each use.
DI_INLINE u32x16 e2m1_values() {
  u32x16 values = bits(f32x16{0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6});
  keep(values);
  return values;
}

// A block without its scales.
template <bool kStored, class Ask>
DI_INLINE f32x16 unscaled_block(const Words<WeightFormat::mxfp4, kStored>& words, const Ask& ask,
                                const float* x, u32x16 values) {
  // Bits to the next pair, and to its odd code.
  constexpr int kPair = kStored ? 8 : 4, kOdd = kStored ? 4 : 16;
  const auto value = [&](u32x16 code) __attribute__((always_inline)) {  // of the low four bits
    return (f32x16)_mm512_permutexvar_ps((__m512i)code, (__m512)floats(values));
  };
  BlockSum sum;
#pragma GCC unroll 4
  for (int w = 0; w < 4; ++w) {
    const u32x16 word = words.at(w);
    ask(w);
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) {
      sum.add(value(word >> (kPair * p)), value(word >> (kPair * p + kOdd)), x + 8 * w + 2 * p);
    }
  }
  return sum.even + sum.odd;
}

DI_INLINE bool lie_within(const uint8_t* scales, int64_t n, const OneRow& row) {
  const __m512i least = _mm512_set1_epi8(static_cast<char>(row.least_scale));
  const __m512i count = _mm512_set1_epi8(static_cast<char>(row.scales));
  bool all = row.scales > 0;
  for (int64_t i = 0; i < n; i += 64) {
    const __mmask64 there = n - i < 64 ? (uint64_t{1} << (n - i)) - 1 : ~uint64_t{0};
    const __m512i place = _mm512_sub_epi8(_mm512_maskz_loadu_epi8(there, scales + i), least);
    all &= _mm512_mask_cmpge_epu8_mask(there, place, count) == 0;
  }
  return all;
}

// total[16] += the row . one group, whose block b has the words words(b); ask(b) is called for each of them.
template <WeightFormat F, class WordsOf, class Ask>
DI_INLINE void add_group(const WordsOf& words, const uint8_t* scales, int64_t blocks, const Ask& ask,
                         const OneRow& row, float* total) {
  f32x16 sum = load<f32x16>(total);
  if constexpr (F != WeightFormat::mxfp4) {
    for (int64_t b = 0; b < blocks; ++b) {
      sum += scaled_block(words(b), scales + b * block_scales(F), ask(b), row.x + kBlock * b);
    }
  } else if (lie_within(scales, 16 * blocks, row)) {
    const u32x16 values = e2m1_values();
    for (int64_t b = 0; b < blocks; ++b) {
      const __m512i byte = _mm512_maskz_cvtepu8_epi32(0xffff, (__m128i)load<u8x16>(scales + 16 * b));
      sum =
          fma(unscaled_block(words(b), ask(b), row.x + kBlock * b, values), floats((u32x16)byte << 23), sum);
    }
  } else {
    for (int64_t b = 0; b < blocks; ++b) {
      sum += block_of_any_scale(words(b), scales + 16 * b, row.x + kBlock * b);
    }
  }
  store(total, sum);
}

template <WeightFormat F>
void add_packed(const uint8_t* group, int64_t groups, int64_t blocks, const OneRow& row, float* totals) {
  const int64_t bytes = group_bytes(F, kBlock * blocks), first = scale_bytes(F, kBlock * blocks);
  for (int64_t g = 0; g < groups; ++g, group += bytes, totals += kGroupRows) {
    const uint8_t* const codes = group + first;
    for (int64_t line = 0; line < first; line += 64) ask_for_first_cache(group + kAheadOfRow + line);
    const auto words = [=](int64_t b) __attribute__((always_inline)) {
      return Words<F, false>{codes + b * block_bytes(F)};
    };
    const auto ask = [=](int64_t b) __attribute__((always_inline)) {
      const uint8_t* const later = codes + b * block_bytes(F) + kAheadOfRow;
      return [=](int w) __attribute__((always_inline)) { ask_for_first_cache(later + 64 * w); };
    };
    add_group<F>(words, group, blocks, ask, row, totals);
  }
}

template <WeightFormat F>
void add_stored(const Codes& group, int64_t row_bytes, int64_t blocks, const OneRow& row, float* totals) {
  const auto words = [=](int64_t b) __attribute__((always_inline)) {
    return Words<F, true>(group.codes + b * 4 * words_of_block(F), row_bytes);
  };
  const auto ask = [=](int64_t b)
                       __attribute__((always_inline)) { return ask_stored<F>(group, row_bytes, b); };
  add_group<F>(words, group.scales, blocks, ask, row, totals);
}

}  // namespace
}  // namespace di::amx
