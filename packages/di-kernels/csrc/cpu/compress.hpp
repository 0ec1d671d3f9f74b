#pragma once

#include <cstdint>

#include "numeric.hpp"

namespace di {

// Where the tokens of each pair are: row `last` of this step, and row `first` or (where first is -1) a ring
// cell.
struct PairRows {
  const int32_t* last;
  const int32_t* first;
  const int32_t* slot;
  const int32_t* cell;
  int64_t count;
};

// Scores and latents of one place, float32 [..., 2, dim]; strides in elements, the last dimension dense.
struct PairRing {
  const float* data;
  int64_t slots, cells;
  int64_t slot_stride, cell_stride, part_stride;
};
struct PairStep {
  const float* data;
  int64_t rows;
  int64_t row_stride, part_stride;
};

// out[i] = round(l0 * (e0 / (e0 + e1)) + l1 * (e1 / (e0 + e1))), e_t = exp(s_t - max(s0, s1)), per channel.
// Throws std::out_of_range for an index outside the step or the ring, before anything is computed.
template <class T>
void compress_pairs(const PairStep& step, const PairRing& ring, const PairRows& pairs, int64_t dim, T* out);

}  // namespace di
