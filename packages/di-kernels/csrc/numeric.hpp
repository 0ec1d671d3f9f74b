// Scalar number formats shared by all kernels. Bit-exact on every instruction set.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace di {

struct bf16 {
  uint16_t bits;
};

inline float to_float(bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
inline float to_float(float x) { return x; }

// Nearest, ties to even; every NaN becomes the one.
inline bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return bf16{0x7fc0};
  return bf16{static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

// Stores a float32 result in the element type of the activations: the only rounding of an operation.
template <class T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline bf16 from_float<bf16>(float x) {
  return to_bf16(x);
}

// The float32 value after rounding to the element type T.
template <class T>
float rounded(float x) {
  return to_float(from_float<T>(x));
}

template <class T>
void widen(const T* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = to_float(x[i]);
}

template <class T>
void narrow(const float* x, int64_t n, T* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = from_float<T>(x[i]);
}

}  // namespace di
