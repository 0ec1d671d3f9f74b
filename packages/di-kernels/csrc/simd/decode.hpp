// Words of the packed layout (weight_layout.hpp) to pairs of bfloat16 numbers, exactly and without their
// scale.
#pragma once

#include "simd/native.hpp"
#include "simd/simd.hpp"
#include "simd/stored_words.hpp"
#include "weight_layout.hpp"

namespace di::simd::DI_ISA {

constexpr int pairs_of_word(WeightFormat format) {
  return format == WeightFormat::mxfp4 ? 4 : format == WeightFormat::fp8 ? 2 : 1;
}

// Half words, as many as a register holds: gcc 12 takes wider vectors apart where it compares them, and moves
// them through memory where it shifts them.
typedef uint16_t halves __attribute__((vector_size(4 * kWidth)));

DI_INLINE halves select_halves(halves mask, halves a, halves b) { return (a & mask) | (b & ~mask); }

// E2M1 codes in the low four bits of every half word.
DI_INLINE vu decode_e2m1(vu words) {
#if defined(DI_AVX512)
  // The sixteen values twice: the permutation reads five bits, the fifth is of the next code.
  const __m256i half =
      _mm256_setr_epi16(0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, static_cast<short>(0x8000),
                        static_cast<short>(0xbf00), static_cast<short>(0xbf80), static_cast<short>(0xbfc0),
                        static_cast<short>(0xc000), static_cast<short>(0xc040), static_cast<short>(0xc080),
                        static_cast<short>(0xc0c0));
  return (vu)_mm512_permutexvar_epi16((__m512i)words, _mm512_broadcast_i64x4(half));
#elif defined(DI_ISA_avx2)
  // Low bytes and high bytes of the values; the other byte of a half word looks up code 0, whose bytes are 0.
  constexpr uint64_t kLow = 0xc0804000c0800000u, kHigh = 0x404040403f3f3f00u, kNegative = 0x8080808080808080u;
  const auto look_up = [](uint64_t positive, uint64_t negative, __m256i code) __attribute__((always_inline)) {
    const auto p = static_cast<long long>(positive), n = static_cast<long long>(negative);
    return _mm256_shuffle_epi8(_mm256_setr_epi64x(p, n, p, n), code);
  };
  const __m256i code = _mm256_and_si256((__m256i)words, _mm256_set1_epi16(15));
  return (vu)_mm256_or_si256(look_up(kLow, kLow, code),
                             look_up(kHigh, kHigh | kNegative, _mm256_slli_epi16(code, 8)));
#else
  const halves code = (halves)words, magnitude = code & 7, normal = (magnitude << 6) + (126 << 7);
  const halves small = (halves)(magnitude == 1) & 0x3f00;  // 0.5 or 0
  return (vu)(select_halves((halves)(magnitude < 2), small, normal) | ((code & 8) << 12));
#endif
}

// The 128 magnitudes of E4M3 in bfloat16: subnormals, multiples of 2^-9, then normal numbers, then the NaN.
struct E4m3Words {
  alignas(64) uint16_t magnitude[128];
};
constexpr E4m3Words e4m3_words() {
  E4m3Words t{{0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60}};
  for (int m = 8; m < 127; ++m) t.magnitude[m] = static_cast<uint16_t>((m << 4) + (120 << 7));
  t.magnitude[127] = 0x7fc0;
  return t;
}
constexpr E4m3Words kE4m3Words = e4m3_words();

// E4M3 codes in the low byte of every half word; 0x7f and 0xff are NaN. What the high bytes hold is dropped.
DI_INLINE vu decode_e4m3_halves(vu words) {
  const halves code = (halves)words;
#if defined(DI_AVX512)
  const auto table = [](int first) { return _mm512_load_si512(kE4m3Words.magnitude + first); };
  const __m512i low = _mm512_permutex2var_epi16(table(0), (__m512i)words, table(32));  // 6 bits of the code
  const __m512i high = _mm512_permutex2var_epi16(table(64), (__m512i)words, table(96));
  const __mmask32 is_high = _mm512_test_epi16_mask((__m512i)words, _mm512_set1_epi16(0x40));
  const halves value = (halves)_mm512_mask_mov_epi16(low, is_high, high);
#else
  const halves magnitude = code & 0x7f;
  halves value = (magnitude << 4) + (120 << 7);
#if defined(DI_ISA_avx2)
  const __m256i m = (__m256i)magnitude;
  const auto look_up = [](uint64_t bytes, __m256i place) __attribute__((always_inline)) {
    return _mm256_shuffle_epi8(_mm256_set1_epi64x(static_cast<long long>(bytes)), place);
  };
  const __m256i small =
      _mm256_or_si256(look_up(0x60402000c0800000u, m), look_up(0x3c3c3c3c3b3b3b00u, _mm256_slli_epi16(m, 8)));
  value = (halves)_mm256_blendv_epi8((__m256i)value, small, _mm256_cmpgt_epi16(_mm256_set1_epi16(8), m));
#else
  // Subnormals, multiples of 2^-9: 4..7, 2..3, 1, 0.
  halves small = ((magnitude - 4) << 5) + 0x3c00;
  small = select_halves((halves)(magnitude < 4), ((magnitude - 2) << 6) + 0x3b80, small);
  small = select_halves((halves)(magnitude < 2), magnitude * 0x3b00, small);
  value = select_halves((halves)(magnitude < 8), small, value);
#endif
  value = select_halves((halves)(magnitude == 0x7f), halves{} + 0x7fc0, value);
#endif
  return (vu)(value | ((code & 0x80) << 8));
}

#if defined(DI_AVX512BF16)
// Bytes of the 128 magnitudes of E4M3 in bfloat16.
struct E4m3Bytes {
  alignas(64) uint8_t low[128], high[128];

  [[gnu::always_inline]] constexpr void set(int m, uint16_t word) {
    low[m] = static_cast<uint8_t>(word);
    high[m] = static_cast<uint8_t>(word >> 8);
  }
};
constexpr E4m3Bytes e4m3_bytes() {
  E4m3Bytes t{};
  for (int m = 0; m < 128; ++m) t.set(m, kE4m3Words.magnitude[m]);
  return t;
}
constexpr E4m3Bytes kE4m3Bytes = e4m3_bytes();

DI_INLINE void decode_e4m3(u32x16 words, const E4m3Bytes& bytes, u32x16* pair) {
  const __m512i code = (__m512i)words;
  const auto table = [](const uint8_t* p) { return _mm512_load_si512(p); };
  const uint8_t *l = bytes.low, *h = bytes.high;
  const u32x16 low = (u32x16)_mm512_permutex2var_epi8(table(l), code, table(l + 64));
  const __m512i magnitude = _mm512_permutex2var_epi8(table(h), code, table(h + 64));
  // magnitude | (code & 0x80)
  const u32x16 high =
      (u32x16)_mm512_ternarylogic_epi32(magnitude, code, _mm512_set1_epi8(static_cast<char>(0x80)), 0xf8);
  // Low bytes of the halves from a, high ones from b.
  const auto join = [](__m512i a, __m512i b) {
    return (u32x16)_mm512_ternarylogic_epi32(_mm512_set1_epi16(0x00ff), a, b, 0xca);
  };
  pair[0] = join((__m512i)low, _mm512_slli_epi16((__m512i)high, 8));
  pair[1] = join(_mm512_srli_epi16((__m512i)low, 8), (__m512i)high);
}

DI_INLINE void decode_e4m3(u32x16 words, u32x16* pair) { decode_e4m3(words, kE4m3Bytes, pair); }
#else
DI_INLINE void decode_e4m3(vu words, vu* pair) {
  pair[0] = decode_e4m3_halves(words);
  pair[1] = decode_e4m3_halves(words >> 8);
}
#endif

// A word of every row to its pairs in order, pairs_of_word(F) of them.
template <WeightFormat F>
DI_INLINE void decode_words(vu words, vu* pair) {
  if constexpr (F == WeightFormat::mxfp4) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) pair[i] = decode_e2m1(words >> (4 * i));
  } else if constexpr (F == WeightFormat::fp8) {
    decode_e4m3(words, pair);
  } else {
    pair[0] = words;
  }
}

#if !defined(DI_AVX512)
template <WeightFormat F>
DI_INLINE void decode_words(u32x16 words, u32x16* pair) {
  constexpr int kParts = 16 / kWidth, kPairs = pairs_of_word(F);
  vu part[kParts], decoded[kPairs], all[kPairs][kParts];
  std::memcpy(part, &words, sizeof words);
  for (int i = 0; i < kParts; ++i) {
    decode_words<F>(part[i], decoded);
    for (int p = 0; p < kPairs; ++p) all[p][i] = decoded[p];
  }
  std::memcpy(pair, all, sizeof all);
}
#endif

// The same for a word as the checkpoint stores it (stored_words.hpp).
template <WeightFormat F>
DI_INLINE void decode_stored_words(u32x16 words, u32x16* pair) {
#if defined(DI_AVX512BF16)
  if constexpr (F == WeightFormat::mxfp4) {
    // A byte of four that is taken from any bit on: codes 2i and 2i + 1 to the low ends of the halves.
#pragma GCC unroll 4
    for (uint64_t i = 0; i < 4; ++i) {
      const uint64_t low = 8 * i | (8 * i + 4) << 16, both = low | (low + 0x00200020u) << 32;
      const __m512i from = _mm512_set1_epi64(static_cast<long long>(both));
      pair[i] = decode_e2m1((u32x16)_mm512_multishift_epi64_epi8(from, (__m512i)words));
    }
    return;
  }
#endif
  decode_words<F>(split_halves<F>(words), pair);
}

// Scales of the rows first.. of a block, as many as a register holds; 2^-127 counts as 0 where `flush`, as it
// does for the arithmetic there.
template <WeightFormat F>
DI_INLINE vf decode_row_scales(const uint8_t* scales, int64_t block, [[maybe_unused]] int first, bool flush) {
  vu byte;
  if constexpr (F == WeightFormat::mxfp4) {
    const uint8_t* p = scales + 16 * block + first;
#if defined(DI_AVX512)  // Spelled out: gcc 12 takes the vector apart for the conversion.
    byte = (vu)_mm512_cvtepu8_epi32((__m128i)load<u8x16>(p));
#elif defined(DI_ISA_avx2)
    byte = (vu)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
    for (int i = 0; i < kWidth; ++i) byte[i] = p[i];
#endif
  } else if constexpr (F == WeightFormat::fp8) {
    byte = vu{} + static_cast<uint32_t>(scales[block]);
  } else {
    return repeat(1.0f);
  }
  vu value = byte << 23;
  value |= (vu)(byte == 255) & 0x00400000u;
  if (!flush) value |= (vu)(byte == 0) & 0x00400000u;
  return floats(value);
}

// Of all 16 rows.
template <WeightFormat F>
DI_INLINE f32x16 decode_scales(const uint8_t* scales, int64_t block, bool flush) {
  f32x16 all;
  vf part[16 / kWidth];
  for (int i = 0; i < 16 / kWidth; ++i) part[i] = decode_row_scales<F>(scales, block, i * kWidth, flush);
  std::memcpy(&all, part, sizeof all);
  return all;
}

// body of a format whose numbers are exact in bfloat16: of all but float32.
template <class Body>
DI_INLINE void of_narrow_format(WeightFormat format, const Body& body) {
  switch (format) {
    case WeightFormat::bfloat16:
      return body.template operator()<WeightFormat::bfloat16>();
    case WeightFormat::fp8:
      return body.template operator()<WeightFormat::fp8>();
    case WeightFormat::mxfp4:
      return body.template operator()<WeightFormat::mxfp4>();
    case WeightFormat::float32:
      return;
  }
}

}  // namespace di::simd::DI_ISA
