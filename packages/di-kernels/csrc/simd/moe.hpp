// Arithmetic of the experts between their projections.
#pragma once

#include <cstdint>

#include "isa.hpp"

namespace di::moe_simd {

struct Table {
  // out[i] = SiLU(gate[i]) * up[i] * weight for 16 channels, clamped (backbone specification, 4.4, 4.5);
  // gate, up and the result are rounded to bfloat16 where `round`. A NaN stays one.
  void (*swiglu)(const float* gate, const float* up, float limit, float weight, bool round, float* out);
};
DI_SIMD_FAMILY

}  // namespace di::moe_simd
