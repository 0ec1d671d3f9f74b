// Engram: hashed n-gram memory injected into the trunk (backbone specification, 5).
#pragma once

#include "cpu/engram.hpp"
#include "plan/hyper.hpp"
#include "plan/step_rows.hpp"

namespace di::plan {

struct EngramPlan {
  const uint8_t* vocabulary = nullptr;  // int32 [vocabulary_size]
  int64_t vocabulary_size = 0, pad = 0;
  EngramHash hash{};  // its constants are aligned
  EngramTable table{};
  Weight wkv{};
  const float* weight = nullptr;  // [streams, dim], the product of the query and key weights
  float eps = 0;

  int64_t columns() const { return (hash.n - 1) * hash.heads; }

  template <class T>
  void run(Trunk<T>& trunk, const StepRows& rows, Workspace& work) const;
};

}  // namespace di::plan
