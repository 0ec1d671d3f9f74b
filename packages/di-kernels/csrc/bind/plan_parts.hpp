// The dataclasses of di_kernels.plan as native plans, checked once.
#pragma once

#include "bind/fields.hpp"
#include "plan/model.hpp"

namespace di::bind {

constexpr int64_t kMost = int64_t{1} << 40;
constexpr int64_t kMostPositions = int64_t{1} << 31;

// A plan, what it keeps alive, and the element type of its activations.
struct BoundPlan {
  nb::object keeps;
  bool bfloat16 = false;
  int64_t cache_layers = 0;
  di::plan::ModelPlan plan;
};

// Fills `bound` from a ModelPart. Throws a ValueError or TypeError of Python that names the part.
void bind_model(BoundPlan* bound, nb::handle spec);

}  // namespace di::bind
