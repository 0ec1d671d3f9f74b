#include "plan/hyper.hpp"

#include <algorithm>

namespace di::plan {

template <class T>
Trunk<T> Trunk<T>::expand(const T* hidden, int64_t rows, int64_t streams, int64_t dim, Workspace& work) {
  Trunk trunk{rows, streams, dim};
  trunk.stream = work.take<T>(rows * streams * dim);
  trunk.spare = work.take<T>(rows * streams * dim);
  trunk.pre = work.take<float>(rows * streams);
  trunk.spare_pre = work.take<float>(rows * streams);
  parallel_for(rows * streams, dim, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::copy_n(hidden + i / streams * dim, dim, trunk.stream + i * dim);
      trunk.pre[i] = i % streams == 0 ? 1.0f : 0.0f;
    }
  });
  return trunk;
}

template <class T>
Entered<T> HyperPlan::enter(const Trunk<T>& trunk, const Norm& norm, Workspace& work) const {
  const int64_t rows = trunk.rows, m = trunk.streams, dim = trunk.dim;
  const HyperMixes mixes{trunk.spare_pre, work.take<float>(rows * m), work.take<float>(rows * m * m)};
  T* x = work.take<T>(rows * dim);
  T* quantized = norm.quantize ? work.take<T>(rows * dim) : nullptr;
  float* scratch = work.take<float>(rows * (m * (m + 2) + 1));
  hyper_enter<T>(trunk.stream, rows, m, dim, fn, eps, parameters, trunk.pre, norm.weights(), scratch, mixes,
                 x, quantized);
  return {{x, quantized}, mixes.post, mixes.comb};
}

template <class T>
void leave(Trunk<T>& trunk, const Entered<T>& entered, const T* y) {
  hyper_post<T>(trunk.stream, y, entered.post, entered.comb, trunk.spare, trunk.rows, trunk.streams,
                trunk.dim);
  trunk.swap_stream();
  trunk.swap_pre();
}

template <class T>
void leave(Trunk<T>& trunk, const Entered<T>& entered, const T* shared, const T* routed, int64_t slots) {
  hyper_post_combined<T>(trunk.stream, shared, routed, slots, entered.post, entered.comb, trunk.spare,
                         trunk.rows, trunk.streams, trunk.dim);
  trunk.swap_stream();
  trunk.swap_pre();
}

#define DI_INSTANTIATE(T)                                                               \
  template struct Trunk<T>;                                                             \
  template Entered<T> HyperPlan::enter(const Trunk<T>&, const Norm&, Workspace&) const; \
  template void leave(Trunk<T>&, const Entered<T>&, const T*);                          \
  template void leave(Trunk<T>&, const Entered<T>&, const T*, const T*, int64_t);
DI_INSTANTIATE(float)
DI_INSTANTIATE(bf16)
#undef DI_INSTANTIATE

}  // namespace di::plan
