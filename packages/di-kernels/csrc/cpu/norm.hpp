#pragma once

#include <cstdint>

#include "numeric.hpp"

namespace di {

// What rows are normalised with: weight [dim] float32 at any address.
struct NormWeight {
  const uint8_t* weight;
  float eps;
};

// y[r] = round((x[r] * rstd) * weight), rstd = 1/sqrt(mean(x^2) + eps); x, y [rows, dim] contiguous, y may be
// x; weight [dim] float32 at any address. `quantized` [rows, dim], where not null, gets the MXFP8 round trip
// of y (backbone specification, 2.3); dim is a multiple of 32 then. Squares are summed in 64 partial sums of
// interleaved elements, then a tree; elements past a multiple of 64 follow in order.
template <class T>
void rms_norm(const T* x, const uint8_t* weight, T* y, int64_t rows, int64_t dim, float eps,
              T* quantized = nullptr);

}  // namespace di
