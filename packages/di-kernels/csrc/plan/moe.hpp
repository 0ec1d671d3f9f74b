// Mixture of experts: router, routed experts and one shared expert (backbone specification, 4).
#pragma once

#include "cpu/moe.hpp"
#include "cpu/route.hpp"
#include "plan/projection.hpp"
#include "plan/workspace.hpp"

namespace di::plan {

struct MoePlan {
  Weight gate{};
  const uint8_t* bias = nullptr;  // float32 [experts], at any address
  int64_t top_k = 0;
  float scale = 0, limit = 0;
  const ExpertBank *experts = nullptr, *shared = nullptr;
  bool quantize_experts = false, quantize_shared = false;

  // What the experts of each row return: shared [rows, dim], routed [rows, top_k, dim] in the order of the
  // choice. Both are in `work`.
  template <class T>
  struct Outputs {
    const T *shared, *routed;
  };
  template <class T>
  Outputs<T> run(const T* x, int64_t rows, Workspace& work) const;
};

}  // namespace di::plan
