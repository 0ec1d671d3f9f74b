#include "cpu/norm.hpp"

#include "parallel.hpp"
#include "simd/norm.hpp"

namespace di {

template <class T>
void rms_norm(const T* x, const uint8_t* weight, T* y, int64_t rows, int64_t dim, float eps, T* quantized) {
  const auto& loops = norm_simd::active().of<T>();
  parallel_for(rows, quantized == nullptr ? dim : 4 * dim, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      T* second = quantized == nullptr ? nullptr : quantized + r * dim;
      loops.rms_norm(x + r * dim, weight, dim, eps, y + r * dim, second);
    }
  });
}

template void rms_norm<float>(const float*, const uint8_t*, float*, int64_t, int64_t, float, float*);
template void rms_norm<bf16>(const bf16*, const uint8_t*, bf16*, int64_t, int64_t, float, bf16*);

}  // namespace di
