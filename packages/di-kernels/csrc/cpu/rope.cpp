#include "cpu/rope.hpp"

#include <algorithm>

#include "parallel.hpp"
#include "simd/rope.hpp"

namespace di {

template <class T>
void apply_rope(const T* x, const int32_t* positions, const float* table, T* y, int64_t rows, int64_t heads,
                int64_t width, int64_t dim, bool inverse) {
  const int64_t plain = width - dim, pairs = dim / 2;
  const auto rotate = rope_simd::active().of<T>().rotate;
  parallel_for(rows, kPerElement * heads * dim, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* angles = table + positions[r] * dim;
      for (int64_t h = r * heads; h < (r + 1) * heads; ++h) {
        if (y != x) std::copy_n(x + h * width, plain, y + h * width);
        rotate(x + h * width + plain, angles, angles + pairs, inverse ? -1.0f : 1.0f, pairs,
               y + h * width + plain);
      }
    }
  });
}

template void apply_rope<float>(const float*, const int32_t*, const float*, float*, int64_t, int64_t, int64_t,
                                int64_t, bool);
template void apply_rope<bf16>(const bf16*, const int32_t*, const float*, bf16*, int64_t, int64_t, int64_t,
                               int64_t, bool);

}  // namespace di
