// y = x . W^T. Every output is a sum over blocks of 32 inputs in ascending order,
//   total = fma(block sum, scale, total),
// each block sum starting from zero, whatever else is computed beside it. The weights of a block are taken
// without their scale. Narrow products (bfloat16 inputs, or quantized ones, and a weight that is not float32)
// add the pairs of a block in order as dot_bf16 does, with subnormals flushed; wide ones add the 32 products
// in order, each by a fused multiply-add in float32. On amx a narrow product has the weights with their
// scales, and adds up the even inputs of a block and the odd ones apart. The last block is padded with zeros.
#pragma once

#include <cstdint>

#include "cpu/buffer.hpp"
#include "cpu/weight.hpp"
#include "numeric.hpp"

namespace di {

// Inputs of a product: block b of row m at (b * rows + m) * 32; bfloat16, or float32 where wide. Few rows
// that meet a weight as stored also lie in lanes (simd/stored_linear.hpp), or the product takes longer.
struct BlockedRows {
  const void* data;
  int64_t rows;
  bool wide;
  const uint32_t* lanes = nullptr;
};

// Whether the product of such rows with the weight is a wide one.
template <class T>
bool is_wide(const Weight& weight, bool quantize_input) {
  return weight.format == WeightFormat::float32 || (sizeof(T) == 4 && !quantize_input);
}

// Writes a row of k values as row m of `rows` blocked ones, optionally replaced by its MXFP8 values.
template <class T>
void block_row(const T* row, int64_t k, bool quantize, bool wide, int64_t m, int64_t rows, void* out);

// The most rows for which a product with the weight has use for lanes, and the numbers of their lanes.
int64_t lane_rows(const Weight& weight, bool wide);
int64_t lanes_size(int64_t k, int64_t rows);

// Writes the lanes of rows of k inputs, and tells the rows of them.
void add_lanes(int64_t k, uint32_t* out, BlockedRows& x);

// Inputs of the weight: x [rows, k], rows `stride` apart, optionally replaced by their MXFP8 values (backbone
// specification, 2.3). The result is x itself where that serves, else it lies in `buffer`.
template <class T>
BlockedRows block_rows(const T* x, int64_t stride, int64_t rows, const Weight& weight, bool quantize,
                       Buffer& buffer);

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
