#include "cpu/norm.hpp"

#include <vector>

#include "cpu/reduce.hpp"
#include "cpu/weight.hpp"
#include "parallel.hpp"

namespace di {
namespace {

DI_MULTIVERSION
float square_sum(const float* x, int64_t n) { return dot(x, x, n); }

}  // namespace

template <class T>
void rms_norm(const T* x, const uint8_t* weight, T* y, int64_t rows, int64_t dim, float eps) {
  parallel_for(rows, 4 * dim, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(dim));
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t i = 0; i < dim; ++i) row[i] = to_float(x[r * dim + i]);
      const float rstd = 1.0f / std::sqrt(square_sum(row.data(), dim) / static_cast<float>(dim) + eps);
      for (int64_t i = 0; i < dim; ++i) {
        y[r * dim + i] = from_float<T>((row[i] * rstd) * load_unaligned<float>(weight, i));
      }
    }
  });
}

template void rms_norm<float>(const float*, const uint8_t*, float*, int64_t, int64_t, float);
template void rms_norm<bf16>(const bf16*, const uint8_t*, bf16*, int64_t, int64_t, float);

}  // namespace di
