#pragma once

#include <cstdint>

#include "numeric.hpp"

namespace di {

// y[r] = round((x[r] * rstd) * weight), rstd = 1/sqrt(mean(x^2) + eps); x, y [rows, dim] contiguous; weight
// [dim] float32 at any address.
template <class T>
void rms_norm(const T* x, const uint8_t* weight, T* y, int64_t rows, int64_t dim, float eps);

}  // namespace di
