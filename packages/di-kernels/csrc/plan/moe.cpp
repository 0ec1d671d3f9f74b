#include "plan/moe.hpp"

#include <algorithm>

namespace di::plan {

template <class T>
MoePlan::Outputs<T> MoePlan::run(const T* x, int64_t rows, Workspace& work) const {
  const int64_t dim = gate.k;
  T* chosen = work.take<T>(rows * top_k * dim);
  T* common = work.take<T>(rows * dim);
  const Workspace::Scope scope(work);
  float* logits = work.take<float>(rows * gate.n);
  int32_t* ids = work.take<int32_t>(rows * top_k);
  float* weights = work.take<float>(rows * top_k);
  linear<T, float>(x, rows, gate, false, logits);
  route(logits, bias, 0, rows, gate.n, top_k, scale, ids, weights);
  run_experts<T>(*experts, x, ids, weights, rows, top_k, limit, quantize_experts, chosen);

  int32_t* first = work.take<int32_t>(rows);
  std::fill_n(first, rows, 0);
  run_experts<T>(*shared, x, first, nullptr, rows, 1, limit, quantize_shared, common);
  return {common, chosen};
}

template MoePlan::Outputs<float> MoePlan::run(const float*, int64_t, Workspace&) const;
template MoePlan::Outputs<bf16> MoePlan::run(const bf16*, int64_t, Workspace&) const;

}  // namespace di::plan
