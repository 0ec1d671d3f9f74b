// Expert choice of one row (cpu/route.hpp).
#pragma once

#include <cstdint>

#include "isa.hpp"

namespace di::route_simd {

constexpr int64_t padded(int64_t experts) { return (experts + 15) / 16 * 16; }

struct Table {
  // `score` and `key` are scratch for padded(experts) elements.
  void (*route)(const float* logits, const uint8_t* bias, int64_t experts, int64_t top_k, float scale,
                float* score, uint32_t* key, int32_t* ids, float* weights);
};
DI_SIMD_FAMILY

}  // namespace di::route_simd
