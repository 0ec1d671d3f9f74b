// Mixture of experts (backbone specification, 4): routing, SwiGLU experts, combination.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/weight.hpp"
#include "numeric.hpp"

namespace di {

// SwiGLU MLPs of equal shape: w1, w3 [inter, dim], w2 [dim, inter] of each expert. Borrows the weights.
struct ExpertBank {
  std::vector<Weight> w1, w3, w2;
  int64_t dim = 0, inter = 0;

  int64_t size() const { return static_cast<int64_t>(w1.size()); }
};

// Chooses top_k experts a row by biased score and weighs them by the plain ones. logits [rows, experts]; the
// bias of row r starts r * bias_row_bytes behind `bias` (0: one bias for all). A row with a NaN gets NaN
// weights.
void route(const float* logits, const uint8_t* bias, int64_t bias_row_bytes, int64_t rows, int64_t experts,
           int64_t top_k, float scale, int32_t* ids, float* weights);

// Outputs y [rows, slots, dim] of the experts ids [rows, slots] (below 0: zeros); every id is below
// bank.size(). weights [rows, slots] are routing weights, or null. x [rows, dim].
template <class T>
void run_experts(const ExpertBank& bank, const T* x, const int32_t* ids, const float* weights, int64_t rows,
                 int64_t slots, float limit, bool quantize_input, T* y);

// y[r] = round(shared[r] + routed[r, 0] + routed[r, 1] + ..); routed [rows, slots, dim].
template <class T>
void combine(const T* shared, const T* routed, T* y, int64_t rows, int64_t slots, int64_t dim);

}  // namespace di
