// Around the experts (backbone specification, 4): which ones a row goes to, and the sum of what they return.
#pragma once

#include <cstdint>

#include "numeric.hpp"

namespace di {

// Chooses top_k experts a row by biased score and weighs them by the plain ones. logits [rows, experts]; the
// bias of row r starts r * bias_row_bytes behind `bias` (0: one bias for all). A row with a NaN gets NaN
// weights.
void route(const float* logits, const uint8_t* bias, int64_t bias_row_bytes, int64_t rows, int64_t experts,
           int64_t top_k, float scale, int32_t* ids, float* weights);

// y[r] = round(shared[r] + routed[r, 0] + routed[r, 1] + ..); routed [rows, slots, dim].
template <class T>
void combine(const T* shared, const T* routed, T* y, int64_t rows, int64_t slots, int64_t dim);

}  // namespace di
