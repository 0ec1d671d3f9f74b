// Rows of activations, float32 or bfloat16, 16 elements at a time. Only for sources of csrc/simd.
#pragma once

#include "numeric.hpp"
#include "simd/simd.hpp"

namespace di::simd::DI_ISA {

// How many elements of a step of 16 there are: all of them, or the `n` of a row's end.
struct Whole {};
struct Part {
  int64_t n;
};

// Calls body(i, Whole or Part) for i = 0, 16, .. below n.
template <class Body>
DI_INLINE void by_16(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) body(i, Whole{});
  if (i < n) body(i, Part{n - i});
}

DI_INLINE f32x16 load_row(const float* p, Whole) { return load<f32x16>(p); }
DI_INLINE f32x16 load_row(const bf16* p, Whole) { return widen_bf16(load<u16x16>(p)); }

template <class T>
DI_INLINE f32x16 load_row(const T* p, Part part) {
  T lanes[16] = {};
  std::memcpy(lanes, p, static_cast<size_t>(part.n) * sizeof(T));
  return load_row(lanes, Whole{});
}

DI_INLINE void store_row(float* p, f32x16 v, Whole) { store(p, one_nan(v)); }
DI_INLINE void store_row(bf16* p, f32x16 v, Whole) { store(p, to_bf16(v)); }

// Of values that T holds.
DI_INLINE void store_exact(float* p, f32x16 v) { store(p, v); }
DI_INLINE void store_exact(bf16* p, f32x16 v) { store(p, narrow_bf16(v)); }

template <class T>
DI_INLINE void store_row(T* p, f32x16 v, Part part) {
  T lanes[16];
  store_row(lanes, v, Whole{});
  std::memcpy(p, lanes, static_cast<size_t>(part.n) * sizeof(T));
}

// The values after rounding to T, as store_row() stores them.
template <class T>
DI_INLINE f32x16 rounded(f32x16 v) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return one_nan(v);
  } else {
    return round_bf16(v);
  }
}

// Float32 values i .. i+15 of an array at any byte address.
template <class Count>
DI_INLINE f32x16 load_bytes(const uint8_t* base, int64_t i, Count count) {
  return load_row(reinterpret_cast<const float*>(base + 4 * i), count);
}

// Sum of f(i, lanes) over a row of n: 64 partial sums, then a tree; the terms past a multiple of 64 follow in
// order. `f` gives the 16 terms from i on.
template <class Terms>
DI_INLINE float sum_row(int64_t n, const Terms& f) {
  f32x16 s0{}, s1{}, s2{}, s3{};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    s0 += f(i, Whole{});
    s1 += f(i + 16, Whole{});
    s2 += f(i + 32, Whole{});
    s3 += f(i + 48, Whole{});
  }
  float sum = tree_sum((s0 + s1) + (s2 + s3));
  for (; i < n; i += 16) {
    const int64_t count = n - i < 16 ? n - i : 16;
    float lane[16];
    store(lane, f(i, Part{count}));
    for (int64_t t = 0; t < count; ++t) sum += lane[t];
  }
  return sum;
}

// 1/sqrt(mean(x^2) + eps).
template <class T>
DI_INLINE float inverse_rms(const T* x, int64_t n, float eps) {
  const float sum = sum_row(n, [x](int64_t i, auto lanes) __attribute__((always_inline)) {
    const f32x16 v = load_row(x + i, lanes);
    return v * v;
  });
  return 1.0f / __builtin_sqrtf(sum / static_cast<float>(n) + eps);
}

}  // namespace di::simd::DI_ISA
