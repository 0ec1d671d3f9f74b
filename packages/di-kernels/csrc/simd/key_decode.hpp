// Records of FP8 and FP4 values as bfloat16, 32 elements at a time: the values of simd/groups.hpp, sooner.
// Only for sources of csrc/simd.
#pragma once

#include "numeric.hpp"
#include "simd/groups.hpp"

#if defined(DI_AVX512)

namespace di::simd::DI_ISA {

typedef uint16_t u16x32 __attribute__((vector_size(64)));
typedef int16_t i16x32 __attribute__((vector_size(64)));
typedef uint8_t u8x32 __attribute__((vector_size(32)));

// Bits of the bfloat16 numbers m * 2^-9, the subnormal magnitudes of E4M3.
constexpr uint16_t kSubnormalE4m3[8] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};

// 32 values of one scale, which is added to the exponents of those that are not zero: it keeps them normal.
DI_INLINE u16x32 decode_fp8_32(const uint8_t* codes, uint8_t scale, u16x32 subnormal) {
  const u16x32 code = (u16x32)_mm512_cvtepu8_epi16((__m256i)load<u8x32>(codes));
  const auto shift = static_cast<uint16_t>((scale - 127) * 128);
  const u16x32 magnitude = code & 0x7f;
  u16x32 value = (magnitude << 4) + static_cast<uint16_t>(120 * 128 + shift);
  const __m512i small = _mm512_mask_add_epi16((__m512i)subnormal, 0xfefefefeu, (__m512i)subnormal,
                                              _mm512_set1_epi16(static_cast<int16_t>(shift)));
  const __mmask32 is_small = _mm512_testn_epi16_mask((__m512i)code, _mm512_set1_epi16(0x78));
  value = (u16x32)_mm512_mask_permutexvar_epi16((__m512i)value, is_small, (__m512i)magnitude, small);
  const __mmask32 is_nan = _mm512_cmpeq_epi16_mask((__m512i)magnitude, _mm512_set1_epi16(0x7f));
  value = (u16x32)_mm512_mask_mov_epi16((__m512i)value, is_nan, _mm512_set1_epi16(0x7fc0));
  return value | ((code << 8) & 0x8000);
}

DI_INLINE void decode_fp8(const uint8_t* record, int64_t dim, bf16* out) {
  const uint8_t* const scales = record + dim;
  u16x32 subnormal;
  for (int i = 0; i < 32; ++i) subnormal[i] = kSubnormalE4m3[i % 8];
  for (int64_t i = 0; i < dim; i += 32) {
    const uint8_t scale = scales[i / 32];
    if (scale >= 10 && scale <= 246) {
      store(out + i, decode_fp8_32(record + i, scale, subnormal));
      continue;
    }
    for (int64_t j = i; j < i + 32; j += 16) {
      store_row(out + j, from_e4m3(load_codes(record + j)) * power_of_byte(scale), Whole{});
    }
  }
}

// Lane p holds the elements 2 p and 2 p + 1, lanes 8 to 15 those of the second group. E2M1 times E4M3 has 6
// bits: exact in the upper half of a float32.
DI_INLINE u32x16 decode_fp4_32(const uint8_t* codes, f32x16 scale, f32x16 table) {
  const u32x16 pair = load_codes(codes);
  const f32x16 even = (f32x16)_mm512_permutexvar_ps((__m512i)pair, (__m512)table) * scale;
  const f32x16 odd = (f32x16)_mm512_permutexvar_ps((__m512i)(pair >> 4), (__m512)table) * scale;
  return bits(even) >> 16 | bits(odd);
}

DI_INLINE void decode_fp4(const uint8_t* record, int64_t dim, bf16* out) {
  const uint8_t* const scales = record + dim / 2;
  const u32x16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const f32x16 table = from_e2m1(lane);
  int64_t i = 0;
  for (; i + 256 <= dim; i += 256) {
    const f32x16 scale = from_e4m3(load_codes(scales + i / 16));
#pragma GCC unroll 8
    for (uint32_t j = 0; j < 8; ++j) {
      const __m512i which = (__m512i)((lane >> 3) + 2 * j);
      const f32x16 factor = (f32x16)_mm512_permutexvar_ps(which, (__m512)scale);
      store(out + i + 32 * j, decode_fp4_32(record + i / 2 + 16 * j, factor, table));
    }
  }
  for (; i < dim; i += 32) {
    const u32x16 code = (lane >> 3) * scales[i / 16 + 1] + (1u - (lane >> 3)) * scales[i / 16];
    store(out + i, decode_fp4_32(record + i / 2, from_e4m3(code), table));
  }
}

}  // namespace di::simd::DI_ISA

#endif
