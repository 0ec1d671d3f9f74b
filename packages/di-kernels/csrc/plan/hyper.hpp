// The hyper-connected trunk and how a sub-layer reads and updates it (backbone specification, 3).
#pragma once

#include <utility>

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

// A sub-layer that has read the trunk: its normalised input, and the coefficients of what it will add.
template <class T>
struct Entered {
  Input<T> x;
  const float *post, *comb;
};

// Hyper-connection of one sub-layer.
struct HyperPlan {
  Weight fn{};
  HyperParameters parameters{};
  float eps = 0;

  // The input of the sub-layer, formed with the mix of the one before it. Its own mix is in the spare.
  template <class T>
  Entered<T> enter(const Trunk<T>& trunk, const Norm& norm, Workspace& work) const;
};

// The trunk after a sub-layer that adds y [rows, dim].
template <class T>
void leave(Trunk<T>& trunk, const Entered<T>& entered, const T* y);

// The trunk after experts, shared [rows, dim] and routed [rows, slots, dim].
template <class T>
void leave(Trunk<T>& trunk, const Entered<T>& entered, const T* shared, const T* routed, int64_t slots);

}  // namespace di::plan
