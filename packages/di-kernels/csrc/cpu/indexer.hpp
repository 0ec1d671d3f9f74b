// Lightning indexer (attention specification, 8.4 and 9): scores of compressed entries and candidate blocks.
#pragma once

#include <cstdint>

#include "cpu/records.hpp"
#include "numeric.hpp"

namespace di {

// Paged index keys: values and scales of entry e of block b are values.at(b, e) and scales.at(b, e).
struct IndexPages {
  RecordGrid values;
  RecordGrid scales;  // unused with float32 values
  const int32_t* block_table;
  int64_t sequences, table_width;
  const int32_t* sequence;  // [rows]
};

// Shape of one call: q [rows, heads, dim], weights [rows, heads], both contiguous.
struct IndexShape {
  int64_t rows, heads, dim;
};

// Which entries each row scores: `entries` [rows, width], or 0..width-1 where it is null.
// An entry that is negative or not below visible[r] scores -inf.
struct IndexTargets {
  const int32_t* visible;
  const int32_t* entries;
  int64_t width;
};

// out[r][c] = sum_h relu(q_h . key) * w_h, [rows, width] contiguous; with T = bf16 each dot, each product and
// the sum are rounded. Throws std::out_of_range for an entry outside the table or a block outside the pages,
// before computing.
template <class T>
void index_scores(const IndexShape& shape, const T* q, const T* weights, const IndexPages& pages,
                  const IndexTargets& targets, float* out);

// Best blocks by their largest score, the last visible one always; [rows, top_blocks] ascending, then -1.
// Throws std::out_of_range when a row has more visible entries than scores.
void candidate_blocks(const float* scores, int64_t stride, int64_t rows, int64_t n, const int32_t* visible,
                      int64_t block_size, int64_t top_blocks, int32_t* out);

// Visible entries of the blocks in stored order, without gaps, then -1; out [rows, top_blocks * block_size].
void candidate_entries(const int32_t* blocks, int64_t rows, int64_t top_blocks, const int32_t* visible,
                       int64_t block_size, int32_t* out);

}  // namespace di
