#include "cpu/norm.hpp"

#include <cmath>
#include <vector>

#include "cpu/linear.hpp"
#include "cpu/weight.hpp"
#include "parallel.hpp"

namespace di {
float inverse_rms(const float* x, int64_t n, float eps) {
  return 1.0f / std::sqrt(dot_product(x, x, n) / static_cast<float>(n) + eps);
}

template <class T>
void rms_norm(const T* x, const uint8_t* weight, T* y, int64_t rows, int64_t dim, float eps) {
  parallel_for(rows, 4 * dim, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(dim));
    for (int64_t r = begin; r < end; ++r) {
      widen(x + r * dim, dim, row.data());
      const float rstd = inverse_rms(row.data(), dim, eps);
      for (int64_t i = 0; i < dim; ++i) {
        y[r * dim + i] = from_float<T>((row[i] * rstd) * load_unaligned<float>(weight, i));
      }
    }
  });
}

template void rms_norm<float>(const float*, const uint8_t*, float*, int64_t, int64_t, float);
template void rms_norm<bf16>(const bf16*, const uint8_t*, bf16*, int64_t, int64_t, float);

}  // namespace di
