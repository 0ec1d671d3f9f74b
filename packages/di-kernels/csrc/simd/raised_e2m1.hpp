// E2M1 codes times a power of two as bfloat16 numbers, by a permutation and a subtraction. Only for sources
// of csrc/simd and csrc/amx.
#pragma once

#include "simd/simd.hpp"

#if defined(DI_AVX512)

namespace di::simd::DI_ISA {

// E2M1 in half words: a sign and a magnitude whose exponent is kRaised too large. An unsigned subtraction
// that stops at zero brings it to its place, and leaves zero, which is positive for both signs, where it is.
constexpr int kRaised = 126;
struct RaisedE2m1 {
  alignas(64) uint16_t half[32];
};
constexpr RaisedE2m1 raised_e2m1() {
  RaisedE2m1 t{};
  constexpr uint16_t kMagnitude[8] = {0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0};
  for (int i = 0; i < 32; ++i) {
    const int code = i % 16, magnitude = kMagnitude[code % 8];
    if (magnitude > 0) t.half[i] = static_cast<uint16_t>(magnitude + (kRaised << 7) + (code / 8 << 15));
  }
  return t;
}
constexpr RaisedE2m1 kRaisedE2m1 = raised_e2m1();

// Whether the exponents of 0.5 to 6 and of their products with these scales (UE8M0) are those of normal
// numbers: what scaled_e2m1() needs.
DI_INLINE bool keep_e2m1_normal(u32x16 scales) {
  return _mm512_cmpgt_epu32_mask((__m512i)(scales - 2u), (__m512i)(u32x16{} + 250u)) == 0;
}

// What the values of a lane are lowered by, in both halves.
DI_INLINE __m512i lowered_by(u32x16 scales) {
  const u32x16 lowered = (kRaised + 127u - scales) << 7;
  return (__m512i)(lowered | lowered << 16);
}

// The values of codes in the low ends of half words. What is above them is of no use: the permutation reads
// five bits, and its table holds every value twice.
DI_INLINE __m512i scaled_e2m1(__m512i codes, __m512i lowered) {
  return _mm512_subs_epu16(_mm512_permutexvar_epi16(codes, _mm512_load_si512(&kRaisedE2m1)), lowered);
}

}  // namespace di::simd::DI_ISA

#endif
