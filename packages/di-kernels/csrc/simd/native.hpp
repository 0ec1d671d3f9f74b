// Vectors as wide as the registers of the instruction set, for loops that keep many of them: `vf` of float32
// and `vu` of uint32, kWidth lanes. Lane by lane the same operations as those of simd.hpp, so loops over
// lanes give the same bits whatever the width. Only for sources of csrc/simd.
#pragma once

#include "simd/simd.hpp"

namespace di::simd::DI_ISA {

#if defined(DI_AVX512)
constexpr int kWidth = 16;
typedef f32x16 vf;
typedef u32x16 vu;
typedef i32x16 vi;
#else
#if defined(DI_ISA_avx2)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
typedef float vf __attribute__((vector_size(4 * kWidth)));
typedef uint32_t vu __attribute__((vector_size(4 * kWidth)));
typedef int32_t vi __attribute__((vector_size(4 * kWidth)));

DI_INLINE vu bits(vf v) { return (vu)v; }
DI_INLINE vf floats(vu v) { return (vf)v; }
DI_INLINE vf select(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }

// a * b + c, rounded once.
DI_INLINE vf fma(vf a, vf b, vf c) {
#if defined(DI_ISA_avx2)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  for (int i = 0; i < kWidth; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#endif
}

// a * b + c, rounded once, for a and b that are bfloat16 numbers.
DI_INLINE vf fma_of_bf16(vf a, vf b, vf c) {
#if defined(DI_ISA_avx2)
  return fma(a, b, c);
#else
  // The product has 16 bits. A sum that float64 cannot hold is next to the larger of the two, a float32
  // number: the second rounding gives that one.
  typedef double vd __attribute__((vector_size(8 * kWidth)));
  const vd product = __builtin_convertvector(a, vd) * __builtin_convertvector(b, vd);
  return __builtin_convertvector(product + __builtin_convertvector(c, vd), vf);
#endif
}

// What VDPBF16PS computes (simd.hpp).
DI_INLINE vf dot_bf16(vf acc, vu a, vu b) {
  acc = fma_of_bf16(floats(a & 0xffff0000u), floats(b & 0xffff0000u), acc);
  return fma_of_bf16(floats(a << 16), floats(b << 16), acc);
}
#endif

DI_INLINE vf repeat(float x) { return x - vf{}; }  // keeps -0
DI_INLINE vu repeat(uint32_t x) { return x + vu{}; }

}  // namespace di::simd::DI_ISA
