#include "simd/moe.hpp"

#include "simd/simd.hpp"

namespace di::moe_simd::DI_ISA {
namespace {

using namespace simd::DI_ISA;

DI_INLINE f32x16 rounded(f32x16 v, bool round) { return round ? widen_bf16(to_bf16(v)) : v; }

void swiglu(const float* gate, const float* up, float limit, float weight, bool round, float* out) {
  const f32x16 g = min(rounded(load<f32x16>(gate), round), splat(limit));
  const f32x16 u = max(min(rounded(load<f32x16>(up), round), splat(limit)), splat(-limit));
  store(out, rounded(g / (1.0f + exp(-g)) * u * weight, round));
}

}  // namespace

const Table table = {.swiglu = swiglu};

}  // namespace di::moe_simd::DI_ISA
