// Rotation of interleaved pairs (cpu/rope.hpp).
#pragma once

#include "isa.hpp"
#include "numeric.hpp"

namespace di::rope_simd {

template <class T>
struct Loops {
  // y0 = round(x0*c - x1*s), y1 = round(x0*s + x1*c) with s = sign * sine, for `pairs` pairs; y may be x.
  void (*rotate)(const T* x, const float* cosine, const float* sine, float sign, int64_t pairs, T* y);
};

struct Table {
  Loops<float> f32;
  Loops<bf16> b16;

  template <class T>
  const Loops<T>& of() const {
    if constexpr (sizeof(T) == 4) {
      return f32;
    } else {
      return b16;
    }
  }
};
DI_SIMD_FAMILY

}  // namespace di::rope_simd
