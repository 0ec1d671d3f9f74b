// y = x . W^T. Every output is a sum over blocks of 32 inputs in ascending order,
//   total = fma(block sum, scale, total),
// each block sum starting from zero, whatever else is computed beside it. The weights of a block are taken
// without their scale. Narrow products (bfloat16 inputs, or quantized ones, and a weight that is not float32)
// add the pairs of a block in order as dot_bf16 does, with subnormals flushed; wide ones add the 32 products
// in order, each by a fused multiply-add in float32. On amx a narrow product has the weights with their
// scales, and adds up the even inputs of a block and the odd ones apart. The last block is padded with zeros.
#pragma once

#include <cstdint>

#include "cpu/blocked_rows.hpp"
#include "cpu/weight.hpp"
#include "numeric.hpp"

namespace di {

// totals[g][m][16] = rows . groups group .. group + groups - 1 of the weight. Called by one thread.
void multiply(const Weight& weight, int64_t group, int64_t groups, const BlockedRows& x, float* totals);

// Groups that the rows are best multiplied with at once, a multiple of kTileGroups (simd/linear.hpp).
int64_t groups_at_once(const Weight& weight, const BlockedRows& x);

// y[m][0..count) = rounded totals of m, which are `stride` apart, count <= 16; `totals` has 16 values to
// spare.
void store_totals(const float* totals, int64_t stride, int64_t rows, int64_t count, bf16* y,
                  int64_t y_stride);
void store_totals(const float* totals, int64_t stride, int64_t rows, int64_t count, float* y,
                  int64_t y_stride);

// x [rows, k], y [rows, n], contiguous.
template <class TIn, class TOut>
void linear(const TIn* x, int64_t rows, const Weight& weight, bool quantize_input, TOut* y);

// x [rows, groups, k], y [rows, n], contiguous; group g meets the weight rows g*n/groups .. (g+1)*n/groups
// - 1.
template <class T>
void grouped_linear(const T* x, int64_t rows, int64_t groups, const Weight& weight, T* y);

}  // namespace di
