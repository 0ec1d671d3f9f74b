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
Input<T> HyperPlan::enter(const Trunk<T>& trunk, const Norm& norm, Workspace& work, HyperMixes mixes) const {
  float* z = work.take<float>(trunk.rows * fn.n);
  T* mixed = work.take<T>(trunk.rows * trunk.dim);
  hyper_project<T>(trunk.stream, trunk.rows, fn, eps, z);
  hyper_coefficients(z, trunk.rows, trunk.streams, parameters, mixes);
  hyper_pre<T>(trunk.stream, trunk.pre, mixed, trunk.rows, trunk.streams, trunk.dim);
  return norm.input(mixed, trunk.rows, work);
}

template struct Trunk<float>;
template struct Trunk<bf16>;
template Input<float> HyperPlan::enter(const Trunk<float>&, const Norm&, Workspace&, HyperMixes) const;
template Input<bf16> HyperPlan::enter(const Trunk<bf16>&, const Norm&, Workspace&, HyperMixes) const;

}  // namespace di::plan
