// The group quantizers of cpu/formats.hpp in registers. Only for sources of csrc/simd. All arithmetic is
// exact or a single IEEE operation, and nothing relies on subnormals of float32 but scales that are
// subnormal.
#pragma once

#include "simd/rows.hpp"

namespace di::simd::DI_ISA {

constexpr uint32_t kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u;
constexpr uint8_t kNanE4m3 = 0x7f, kNanUe8m0 = 0xff;

DI_INLINE u32x16 choose(i32x16 mask, u32x16 a, u32x16 b) { return (a & (u32x16)mask) | (b & ~(u32x16)mask); }
DI_INLINE float as_float(uint32_t u) { return __builtin_bit_cast(float, u); }
DI_INLINE uint32_t as_bits(float x) { return __builtin_bit_cast(uint32_t, x); }

// Largest of the lanes.
DI_INLINE uint32_t largest(u32x16 v) {
  typedef uint32_t u32x8 __attribute__((vector_size(32)));
  typedef uint32_t u32x4 __attribute__((vector_size(16)));
  const u32x8 a = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
  const u32x8 b = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  const u32x8 c = a > b ? a : b;
  const u32x4 d = __builtin_shufflevector(c, c, 0, 1, 2, 3), e = __builtin_shufflevector(c, c, 4, 5, 6, 7);
  const u32x4 f = d > e ? d : e;
  const u32x4 g = __builtin_shufflevector(f, f, 2, 3, 0, 1);
  const u32x4 h = f > g ? f : g;
  return h[0] > h[1] ? h[0] : h[1];
}

// Bit pattern of the largest magnitude; a NaN is larger than every number.
DI_INLINE uint32_t largest_magnitude(f32x16 a) { return largest(bits(a) & kMagnitude); }
DI_INLINE uint32_t largest_magnitude(f32x16 a, f32x16 b) {
  const u32x16 u = bits(a) & kMagnitude, v = bits(b) & kMagnitude;
  return largest(u > v ? u : v);
}

// A UE8M0 byte and what it stands for; 255 is NaN.
DI_INLINE float power_of_byte(uint8_t byte) {
  return as_float(byte == 0 ? 0x00400000u : byte == 255 ? 0x7fc00000u : uint32_t{byte} << 23);
}

// Byte of the smallest power of two that is not below a group's largest magnitude, at least `least`, over
// `most`. The group is finite.
DI_INLINE uint8_t ceil_power_byte(uint32_t magnitude, float least, float most) {
  const float a = as_float(magnitude) > least ? as_float(magnitude) : least;
  return static_cast<uint8_t>(((as_bits(a / most) - 1) >> 23) + 1);
}

DI_INLINE uint8_t fp8_scale(uint32_t magnitude) { return ceil_power_byte(magnitude, 1e-4f, 448.0f); }
DI_INLINE uint8_t mxfp4_scale(uint32_t magnitude) { return ceil_power_byte(magnitude, 6 * 0x1p-126f, 6.0f); }
DI_INLINE float reciprocal(uint8_t byte) { return as_float((254u - byte) << 23); }

// E4M3 codes of finite numbers: nearest, ties to even, saturating at 448.
DI_INLINE u32x16 to_e4m3(f32x16 x) {
  const u32x16 u = bits(x), magnitude = u & kMagnitude;
  // Below 2^-6 codes are multiples of 2^-9: adding 2^14 rounds there, in the low bits of the sum.
  const u32x16 subnormal = bits(floats(magnitude) + 0x1p14f) - as_bits(0x1p14f);
  const u32x16 normal = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
  u32x16 code = choose(magnitude < as_bits(0x1p-6f), subnormal, normal);
  code = choose(magnitude > as_bits(448.0f), u32x16{} + 0x7eu, code);
  return code | ((u >> 24) & 0x80u);
}

DI_INLINE f32x16 from_e4m3(u32x16 code) {
  const u32x16 magnitude = code & 0x7fu;
  const f32x16 subnormal = __builtin_convertvector((i32x16)magnitude, f32x16) * 0x1p-9f;
  const u32x16 normal = (magnitude << 20) + (120u << 23);
  u32x16 value = choose(magnitude < 8u, bits(subnormal), normal);
  value = choose(magnitude == 0x7fu, u32x16{} + 0x7fc00000u, value);
  return floats(value | (code & 0x80u) << 24);
}

// E2M1 codes 0..15: nearest, ties to the even code, saturating at 6. `x` has no NaN.
DI_INLINE u32x16 to_e2m1(f32x16 x) {
  const u32x16 u = bits(x), magnitude = u & kMagnitude;
  const u32x16 below_one = bits(floats(magnitude) + 0x1p22f) - as_bits(0x1p22f);  // multiples of 1/2
  const u32x16 normal = ((magnitude + 0x1fffffu + ((magnitude >> 22) & 1u)) >> 22) - (126u << 1);
  u32x16 code = choose(magnitude < as_bits(1.0f), below_one, normal);
  code = choose(code > 7u, u32x16{} + 7u, code);
  return code | ((u >> 28) & 8u);
}

// Values of E2M1 codes in the four low bits; the others are ignored.
DI_INLINE f32x16 from_e2m1(u32x16 code) {
  const u32x16 magnitude = code & 7u;
  const u32x16 value = choose(magnitude < 2u, magnitude * as_bits(0.5f), (magnitude << 22) + (126u << 23));
  return floats(value | (code & 8u) << 28);
}

// 16 codes in 8 bytes, the even element in the low half, and back.
DI_INLINE void store_nibbles(uint8_t* p, u32x16 code) {
  typedef uint64_t u64x8 __attribute__((vector_size(64)));
  const u64x8 pair = (u64x8)code | ((u64x8)code >> 28);
#if defined(DI_AVX512)
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm512_maskz_cvtepi64_epi8(0xff, (__m512i)pair));
#else
  typedef uint8_t u8x8 __attribute__((vector_size(8)));
  store(p, __builtin_convertvector(pair, u8x8));
#endif
}

DI_INLINE u32x16 load_nibbles(const uint8_t* p) {
  typedef uint64_t u64x8 __attribute__((vector_size(64)));
#if defined(DI_AVX512)
  const u64x8 pair =
      (u64x8)_mm512_maskz_cvtepu8_epi64(0xff, _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
  typedef uint8_t u8x8 __attribute__((vector_size(8)));
  const u64x8 pair = __builtin_convertvector(load<u8x8>(p), u64x8);
#endif
  return (u32x16)(pair | (pair << 28));  // from_e2m1 looks at the low four bits only
}

DI_INLINE u32x16 load_codes(const uint8_t* p) {
#if defined(DI_AVX512)
  return (u32x16)_mm512_maskz_cvtepu8_epi32(0xffff, (__m128i)load<u8x16>(p));
#else
  return __builtin_convertvector(load<u8x16>(p), u32x16);
#endif
}

DI_INLINE void store_codes(uint8_t* p, u32x16 code) {
#if defined(DI_AVX512)
  store(p, (u8x16)_mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)code));
#else
  store(p, __builtin_convertvector(code, u8x16));
#endif
}

// Codes of one group; the result is its scale.
DI_INLINE uint8_t encode_fp8(f32x16 a, f32x16 b, uint8_t* codes) {
  const uint32_t magnitude = largest_magnitude(a, b);
  if (magnitude >= kInfinity) {
    std::memset(codes, 0, 32);
    return kNanUe8m0;
  }
  const uint8_t scale = fp8_scale(magnitude);
  store_codes(codes, to_e4m3(a * reciprocal(scale)));
  store_codes(codes + 16, to_e4m3(b * reciprocal(scale)));
  return scale;
}

DI_INLINE uint8_t encode_mxfp4(f32x16 a, f32x16 b, uint8_t* codes) {
  const uint32_t magnitude = largest_magnitude(a, b);
  if (magnitude >= kInfinity) {
    std::memset(codes, 0, 16);
    return kNanUe8m0;
  }
  const uint8_t scale = mxfp4_scale(magnitude);
  store_nibbles(codes, to_e2m1(a * reciprocal(scale)));
  store_nibbles(codes + 8, to_e2m1(b * reciprocal(scale)));
  return scale;
}

DI_INLINE uint8_t encode_fp4(f32x16 v, uint8_t* codes) {
  const uint32_t magnitude = largest_magnitude(v);
  if (magnitude > kInfinity) {
    std::memset(codes, 0, 8);
    return kNanE4m3;
  }
  const float a = as_float(magnitude), least = 6 * 0x1p-9f;
  const float limit = (a > least ? a : least) * (1.0f / 6.0f);
  const u32x16 scale = to_e4m3(splat(limit < 448.0f ? limit : 448.0f));
  store_nibbles(codes, to_e2m1(v / from_e4m3(scale)));
  return static_cast<uint8_t>(scale[0]);
}

// Replaces a group by what a reader of its FP8 codes sees.
DI_INLINE void round_trip_fp8(f32x16& a, f32x16& b) {
  const uint32_t magnitude = largest_magnitude(a, b);
  if (magnitude >= kInfinity) {
    a = b = splat(as_float(0x7fc00000u));
    return;
  }
  const uint8_t scale = fp8_scale(magnitude);
  const float factor = reciprocal(scale), power = power_of_byte(scale);
  const auto through = [factor, power](f32x16 x) __attribute__((always_inline)) {
    const u32x16 u = bits(x * factor), m = u & kMagnitude;
    const u32x16 subnormal = bits((floats(m) + 0x1p14f) - 0x1p14f);
    const u32x16 normal = (m + 0x7ffffu + ((m >> 20) & 1u)) & 0xfff00000u;
    return floats(choose(m < as_bits(0x1p-6f), subnormal, normal) | (u & ~kMagnitude)) * power;
  };
  a = through(a);
  b = through(b);
}

}  // namespace di::simd::DI_ISA
