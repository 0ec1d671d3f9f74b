// Loops of the norm family over one row.
#pragma once

#include "isa.hpp"
#include "numeric.hpp"
#include "simd/by_type.hpp"

namespace di::norm_simd {

template <class T>
struct Loops {
  float (*inverse_rms)(const T* x, int64_t n, float eps);
  // y = round((x * rstd) * weight), y may be x; `quantized`, where not null, is the MXFP8 round trip of y.
  void (*rms_norm)(const T* x, const uint8_t* weight, int64_t n, float eps, T* y, T* quantized);
};

using Table = ByType<Loops>;
DI_SIMD_FAMILY

}  // namespace di::norm_simd
