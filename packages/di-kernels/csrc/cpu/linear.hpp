// y = x . W^T. Every output is one dot product with the order of reduce.hpp, whatever else is computed beside
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/weight.hpp"
#include "numeric.hpp"

namespace di {

constexpr int64_t kTileRows = 16;  // weight rows that are decoded, then met by every input row

// Dot product in the order of reduce.hpp, compiled for the instruction set of the machine.
float dot_product(const float* a, const float* b, int64_t n);

// Inputs of a product as float32 rows, optionally replaced by their MXFP8 values (backbone
// specification, 2.3).
class InputRows {
 public:
  // x [rows, k], contiguous.
  template <class T>
  InputRows(const T* x, int64_t rows, int64_t k, bool quantize);

  const float* row(int64_t r) const { return values_.get() + r * k_; }

 private:
  int64_t k_;
  std::unique_ptr<float[]> values_;
};

// y[r, j] = dot(x[r], row begin + j of the weight) for j < count <= kTileRows; y rows are kTileRows apart.
// `decoded` is scratch for count * k values.
void project_tile(const float* const* x, int64_t rows, const Weight& weight, int64_t begin, int64_t count,
                  float* decoded, float* y);

// x [rows, k], y [rows, n], contiguous.
template <class TIn, class TOut>
void linear(const TIn* x, int64_t rows, const Weight& weight, bool quantize_input, TOut* y);

// x [rows, groups, k], y [rows, n], contiguous; group g meets the weight rows g*n/groups .. (g+1)*n/groups
// - 1.
template <class T>
void grouped_linear(const T* x, int64_t rows, int64_t groups, const Weight& weight, T* y);

}  // namespace di
