// Elementary functions over arrays, with the bits of csrc/simd/simd.hpp.
#pragma once

#include <cstdint>

#include "isa.hpp"

namespace di::math_simd {

struct Table {
  void (*exp)(const float* x, int64_t n, float* y);
  void (*log)(const float* x, int64_t n, float* y);
  void (*log1p)(const float* x, int64_t n, float* y);
  void (*sigmoid)(const float* x, int64_t n, float* y);
};
DI_SIMD_FAMILY

}  // namespace di::math_simd
