#include "plan/moe.hpp"

#include <algorithm>

namespace di::plan {

template <class T>
void MoePlan::run(const T* x, int64_t rows, Workspace& work, T* y) const {
  const Workspace::Scope scope(work);
  const int64_t dim = gate.k;
  float* logits = work.take<float>(rows * gate.n);
  int32_t* ids = work.take<int32_t>(rows * top_k);
  float* weights = work.take<float>(rows * top_k);
  T* routed = work.take<T>(rows * top_k * dim);
  linear<T, float>(x, rows, gate, false, logits);
  route(logits, bias, 0, rows, gate.n, top_k, scale, ids, weights);
  run_experts<T>(*experts, x, ids, weights, rows, top_k, limit, quantize_experts, routed);

  int32_t* first = work.take<int32_t>(rows);
  T* common = work.take<T>(rows * dim);
  std::fill_n(first, rows, 0);
  run_experts<T>(*shared, x, first, nullptr, rows, 1, limit, quantize_shared, common);
  combine<T>(common, routed, y, rows, top_k, dim);
}

template void MoePlan::run<float>(const float*, int64_t, Workspace&, float*) const;
template void MoePlan::run<bf16>(const bf16*, int64_t, Workspace&, bf16*) const;

}  // namespace di::plan
