// Inputs of products, 32 of every row side by side.
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

// Writes `count` rows of k values, `stride` apart, as those from m on of `rows` blocked ones, optionally
// replaced by their MXFP8 values.
template <class T>
void put_rows(const T* x, int64_t stride, int64_t count, int64_t k, bool quantize, bool wide, int64_t m,
              int64_t rows, void* out);

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

}  // namespace di
