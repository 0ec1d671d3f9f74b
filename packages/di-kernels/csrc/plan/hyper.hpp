// The hyper-connected trunk and how a sub-layer reads and updates it (backbone specification, 3).
#pragma once

#include "cpu/hyper.hpp"
#include "plan/projection.hpp"
#include "plan/workspace.hpp"

namespace di::plan {

// The trunk [rows, streams, dim] and the mix [rows, streams] that the next sub-layer's input is formed with.
// The spares are where the next ones go.
template <class T>
struct Trunk {
  int64_t rows, streams, dim;
  T *stream = nullptr, *spare = nullptr;
  float *pre = nullptr, *spare_pre = nullptr;

  // Room for a step, filled with `streams` copies of hidden [rows, dim]; the first mix reads stream 0 alone.
  static Trunk expand(const T* hidden, int64_t rows, int64_t streams, int64_t dim, Workspace& work);

  void swap_stream() { std::swap(stream, spare); }
  void swap_pre() { std::swap(pre, spare_pre); }
};

// Hyper-connection of one sub-layer.
struct HyperPlan {
  Weight fn{};
  HyperParameters parameters{};
  float eps = 0;

  // What the sub-layer adds is y [rows, dim] of its normalised input, body(input, y): updates the trunk and
  // its mix.
  template <class T, class Body>
  void apply(Trunk<T>& trunk, const Norm& norm, Workspace& work, const Body& body) const {
    const Workspace::Scope scope(work);
    const int64_t rows = trunk.rows, m = trunk.streams;
    float* post = work.take<float>(rows * m);
    float* comb = work.take<float>(rows * m * m);
    T* y = work.take<T>(rows * trunk.dim);
    body(enter(trunk, norm, work, {trunk.spare_pre, post, comb}), y);
    hyper_post<T>(trunk.stream, y, post, comb, trunk.spare, rows, m, trunk.dim);
    trunk.swap_stream();
    trunk.swap_pre();
  }

 private:
  // The coefficients of the sub-layer, and its normalised input, formed with the mix of the one before it.
  template <class T>
  Input<T> enter(const Trunk<T>& trunk, const Norm& norm, Workspace& work, HyperMixes mixes) const;
};

}  // namespace di::plan
