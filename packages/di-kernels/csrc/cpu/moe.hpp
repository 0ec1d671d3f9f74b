// Mixture of experts (backbone specification, 4): the SwiGLU experts; see route.hpp for what surrounds them.
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

// Outputs y [rows, slots, dim] of the experts ids [rows, slots] (below 0: zeros); every id is below
// bank.size(). weights [rows, slots] are routing weights, or null. x [rows, dim].
template <class T>
void run_experts(const ExpertBank& bank, const T* x, const int32_t* ids, const float* weights, int64_t rows,
                 int64_t slots, float limit, bool quantize_input, T* y);

}  // namespace di
