// Vectors of 16 lanes for the loops of csrc/simd, the same on every instruction set. Only sources of that
// folder, which are compiled once for each set, include this file; all of it is inlined.
//
// Bits: every function is a fixed sequence of IEEE operations, so the instruction sets agree bit for bit;
// dot_bf16 only where subnormals are flushed (FlushedSubnormals of parallel.hpp).
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define DI_INLINE [[gnu::always_inline]] static inline

namespace di::simd::DI_ISA {

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef uint8_t u8x16 __attribute__((vector_size(16)));

#if defined(DI_ISA_avx512bf16) || defined(DI_ISA_amx)
#define DI_AVX512BF16 1
#endif
#if defined(DI_ISA_avx512) || defined(DI_AVX512BF16)
#define DI_AVX512 1
#endif

template <class V>
DI_INLINE V load(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Keeps what was loaded in a register: gcc would fold the load into each use of it.
DI_INLINE void keep([[maybe_unused]] u32x16& v) {
#if defined(DI_AVX512)
  asm("" : "+v"(v));
#endif
}

template <class V = u32x16>
DI_INLINE V load_once(const void* p) {
  V v = load<V>(p);
#if defined(DI_AVX512)
  keep(v);
#endif
  return v;
}

// Asks for a line that is read once, in the way that `once`, isa.hpp's reads_once(), tells.
DI_INLINE void ask_once(const void* p, bool once) {
  if (once) {
    __builtin_prefetch(p, 0, 0);
  } else {
    __builtin_prefetch(p);
  }
}

template <class V>
DI_INLINE void store(void* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

DI_INLINE f32x16 splat(float x) { return x - f32x16{}; }  // keeps -0
DI_INLINE u32x16 bits(f32x16 v) { return (u32x16)v; }
DI_INLINE f32x16 floats(u32x16 v) { return (f32x16)v; }

// a where the mask is all ones, b where it is 0.
DI_INLINE f32x16 select(i32x16 mask, f32x16 a, f32x16 b) {
  return (f32x16)(((i32x16)a & mask) | ((i32x16)b & ~mask));
}

// a * b + c, rounded once.
DI_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#if defined(DI_AVX512)
  return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(DI_ISA_avx2)
  typedef float f32x8 __attribute__((vector_size(32)));
  f32x8 x[2], y[2], z[2];
  std::memcpy(x, &a, sizeof a);
  std::memcpy(y, &b, sizeof b);
  std::memcpy(z, &c, sizeof c);
  for (int i = 0; i < 2; ++i) z[i] = (f32x8)_mm256_fmadd_ps((__m256)x[i], (__m256)y[i], (__m256)z[i]);
  f32x16 out;
  std::memcpy(&out, z, sizeof out);
  return out;
#else
  for (int i = 0; i < 16; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#endif
}

// Lane by lane acc + a.odd * b.odd, rounded, then + a.even * b.even, rounded: what VDPBF16PS computes. A lane
// of a and b holds two bfloat16 numbers, the even one in its low half.
DI_INLINE f32x16 dot_bf16(f32x16 acc, u32x16 a, u32x16 b) {
#if defined(DI_AVX512BF16)
  return (f32x16)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
#else
  acc = fma(floats(a & 0xffff0000u), floats(b & 0xffff0000u), acc);
  return fma(floats(a << 16), floats(b << 16), acc);
#endif
}

// The larger of two; a NaN in `a` is kept, one in `b` is not.
DI_INLINE f32x16 max(f32x16 a, f32x16 b) {
#if defined(DI_AVX512)
  return (f32x16)_mm512_max_ps((__m512)b, (__m512)a);
#else
  return select(b > a, b, a);
#endif
}
DI_INLINE f32x16 min(f32x16 a, f32x16 b) {
#if defined(DI_AVX512)
  return (f32x16)_mm512_min_ps((__m512)b, (__m512)a);
#else
  return select(b < a, b, a);
#endif
}

// Masks of ones in what follows: gcc 12 warns of the unmasked intrinsics.
DI_INLINE f32x16 widen_bf16(u16x16 v) {
#if defined(DI_AVX512)
  return floats((u32x16)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)v) << 16);
#else
  return floats(__builtin_convertvector(v, u32x16) << 16);
#endif
}

// One NaN for all: which of two an operation keeps depends on the order in which the compiler gives it them.
DI_INLINE f32x16 one_nan(f32x16 v) {
#if defined(DI_AVX512)
  const __mmask16 number = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_ORD_Q);
  return (f32x16)_mm512_mask_mov_ps((__m512)splat(__builtin_nanf("")), number, (__m512)v);
#else
  return select(v == v, v, splat(__builtin_nanf("")));
#endif
}
DI_INLINE float one_nan(float x) { return x == x ? x : __builtin_nanf(""); }

// Nearest bfloat16, ties to even, as float32; a NaN becomes the one (numeric.hpp, to_bf16).
DI_INLINE f32x16 round_bf16(f32x16 x) {
  const u32x16 u = bits(x);
  const u32x16 rounded = u + 0x7fffu + ((u >> 16) & 1u);
#if defined(DI_AVX512)
  const __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
  const u32x16 one = u32x16{} + 0x7fc00000u;
  return floats((u32x16)_mm512_mask_mov_epi32((__m512i)rounded, nan, (__m512i)one) & 0xffff0000u);
#else
  return floats(bits(select(x == x, floats(rounded), splat(__builtin_nanf("")))) & 0xffff0000u);
#endif
}

// Of values that bfloat16 holds.
DI_INLINE u16x16 narrow_bf16(f32x16 x) {
#if defined(DI_AVX512)
  return (u16x16)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)(bits(x) >> 16));
#else
  return __builtin_convertvector(bits(x) >> 16, u16x16);
#endif
}

DI_INLINE u16x16 to_bf16(f32x16 x) { return narrow_bf16(round_bf16(x)); }

DI_INLINE f32x16 sqrt(f32x16 x) {
#if defined(DI_AVX512)
  return (f32x16)_mm512_sqrt_ps((__m512)x);
#else
  for (int i = 0; i < 16; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

// Sum of the lanes: halves are added until one lane is left.
DI_INLINE float tree_sum(f32x16 v) {
  float lane[16];
  store(lane, v);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  return lane[0];
}

// 2^n for integers n of -126..127.
DI_INLINE f32x16 power_of_two(i32x16 n) { return floats((u32x16)(n + 127) << 23); }

// x = e^x, within 2 units in the last place, of N vectors step by step together: a processor that waits for
// one has another at hand. Range reduction by ln 2 in two parts, then the Taylor series to degree 7: its
// remainder is below 2^-27 on |r| <= ln(2)/2.
template <int N>
DI_INLINE void exp(f32x16 (&x)[N]) {
  constexpr float kSeries[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  const f32x16 magic = splat(0x1.8p23f);  // rounds to an integer
  f32x16 n[N], r[N], p[N];
#pragma GCC unroll 8
  for (int k = 0; k < N; ++k) r[k] = min(max(x[k], splat(-104.0f)), splat(89.0f));  // both ends: out of range
#pragma GCC unroll 8
  for (int k = 0; k < N; ++k) n[k] = fma(r[k], splat(0x1.715476p0f), magic) - magic;
#pragma GCC unroll 8
  for (int k = 0; k < N; ++k) r[k] = fma(n[k], splat(-0x1.62e4p-1f), r[k]);
#pragma GCC unroll 8
  for (int k = 0; k < N; ++k) r[k] = fma(n[k], splat(-0x1.7f7d1cp-20f), r[k]);
#pragma GCC unroll 8
  for (int k = 0; k < N; ++k) p[k] = splat(1.0f / 5040);
#pragma GCC unroll 8
  for (const float coefficient : kSeries) {
#pragma GCC unroll 8
    for (int k = 0; k < N; ++k) p[k] = fma(p[k], r[k], splat(coefficient));
  }
#pragma GCC unroll 8
  for (int k = 0; k < N; ++k) {
    const i32x16 whole = __builtin_convertvector(n[k], i32x16);
    const i32x16 half = whole >> 1;  // 2^n alone may be out of range
    const f32x16 y = p[k] * power_of_two(half) * power_of_two(whole - half);
    x[k] = select(x[k] != x[k], x[k], y);
  }
}

DI_INLINE f32x16 exp(f32x16 x) {
  f32x16 one[1] = {x};
  exp(one);
  return one[0];
}

// ln x for normal x > 0, within 2 units in the last place; ln 0 = -inf, NaN below 0. The mantissa m is taken
// from [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m - 1) / (m + 1)) by its series.
DI_INLINE f32x16 log(f32x16 x) {
  const u32x16 u = bits(x) - 0x3f3504f3u;  // sqrt(1/2)
  const i32x16 exponent = (i32x16)u >> 23;
  const f32x16 m = floats((u & 0x007fffffu) + 0x3f3504f3u);
  const f32x16 s = (m - 1.0f) / (m + 1.0f), s2 = s * s;
  f32x16 p = splat(2.0f / 9);
  p = fma(p, s2, splat(2.0f / 7));
  p = fma(p, s2, splat(2.0f / 5));
  p = fma(p, s2, splat(2.0f / 3));
  const f32x16 e = __builtin_convertvector(exponent, f32x16);
  const f32x16 small = fma(e, splat(-0x1.05c61p-29f), fma(p * s2, s, 2.0f * s));
  f32x16 y = fma(e, splat(0x1.62e43p-1f), small);
  y = select(x == 0.0f, splat(-__builtin_inff()), y);
  y = select(x == __builtin_inff(), x, y);
  return select(x >= 0.0f, y, splat(__builtin_nanf("")));
}

// ln(1 + x) for x >= 0, within 4 units in the last place: what rounding 1 + x lost is added again.
DI_INLINE f32x16 log1p(f32x16 x) {
  const f32x16 u = 1.0f + x;
  const f32x16 lost = (x - (u - 1.0f)) / u;
  return log(u) + select(u == __builtin_inff(), splat(0.0f), lost);
}

// 1 / (1 + e^-x), within 4 units in the last place.
DI_INLINE f32x16 sigmoid(f32x16 x) { return 1.0f / (1.0f + exp(-x)); }

}  // namespace di::simd::DI_ISA
