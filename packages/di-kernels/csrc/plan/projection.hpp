// Small steps that every part of a layer takes.
#pragma once

#include <cstdint>

#include "cpu/cache.hpp"
#include "cpu/linear.hpp"
#include "cpu/norm.hpp"
#include "cpu/weight.hpp"
#include "parallel.hpp"
#include "plan/workspace.hpp"

namespace di::plan {

// A weight and whether its input is quantized to MXFP8 first (backbone specification, 2.4).
struct Projection {
  Weight weight{};
  bool quantize = false;
};

template <class T>
void project(const T* x, int64_t rows, const Projection& projection, T* y) {
  linear<T, T>(x, rows, projection.weight, projection.quantize, y);
}

// Rows that several projections read, quantized once where they are made; `quantized` is null where none
// asks.
template <class T>
struct Input {
  const T *plain, *quantized;
};

template <class T>
void project(const Input<T>& x, int64_t rows, const Projection& projection, T* y) {
  linear<T, T>(projection.quantize ? x.quantized : x.plain, rows, projection.weight, false, y);
}

// RMS norm: float32 weights at any address.
struct Norm {
  const uint8_t* weight = nullptr;
  int64_t dim = 0;
  float eps = 0;
  bool quantize = false;  // some projection reads the result as MXFP8 values

  NormWeight weights() const { return {weight, eps}; }

  // The result, and its quantized form where that is needed, in `work`.
  template <class T>
  Input<T> input(const T* x, int64_t rows, Workspace& work) const {
    T* y = work.take<T>(rows * dim);
    T* quantized = quantize ? work.take<T>(rows * dim) : nullptr;
    rms_norm<T>(x, weight, y, rows, dim, eps, quantized);
    return {y, quantized};
  }
};

// Rotary table of a layer: float32 [positions, dim], cosines then sines.
struct RopeTable {
  const float* data = nullptr;
  int64_t positions = 0, dim = 0;

  Rotation at(const int32_t* rows) const { return {data, dim, rows}; }
};

}  // namespace di::plan
