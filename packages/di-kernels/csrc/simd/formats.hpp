// Loops of the group quantizers over one vector of `dim` values, whole groups (cpu/formats.hpp).
#pragma once

#include "isa.hpp"
#include "numeric.hpp"
#include "simd/by_type.hpp"

namespace di::formats_simd {

template <class T>
struct Loops {
  using Encode = void (*)(const T* x, int64_t dim, uint8_t* codes, uint8_t* scales);
  using Decode = void (*)(const uint8_t* codes, const uint8_t* scales, int64_t dim, T* x);
  Encode encode[3];  // by GroupFormat
  Decode decode[3];
  void (*round_trip_fp8)(const T* x, int64_t dim, T* y);  // y may be x
};

using Table = ByType<Loops>;
DI_SIMD_FAMILY

}  // namespace di::formats_simd
