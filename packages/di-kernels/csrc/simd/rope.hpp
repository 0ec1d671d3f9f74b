// Rotation of interleaved pairs (cpu/rope.hpp).
#pragma once

#include "isa.hpp"
#include "numeric.hpp"
#include "simd/by_type.hpp"

namespace di::rope_simd {

template <class T>
struct Loops {
  // y0 = round(x0*c - x1*s), y1 = round(x0*s + x1*c) with s = sign * sine, for `pairs` pairs; y may be x.
  void (*rotate)(const T* x, const float* cosine, const float* sine, float sign, int64_t pairs, T* y);
};

using Table = ByType<Loops>;
DI_SIMD_FAMILY

}  // namespace di::rope_simd
