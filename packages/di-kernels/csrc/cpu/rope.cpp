#include "cpu/rope.hpp"

#include <algorithm>

#include "parallel.hpp"

namespace di {
namespace {

template <class T>
void rotate(const T* x, const float* cosine, const float* sine, float sign, T* y, int64_t pairs) {
  for (int64_t i = 0; i < pairs; ++i) {
    const float x0 = to_float(x[2 * i]), x1 = to_float(x[2 * i + 1]);
    const float c = cosine[i], s = sign * sine[i];
    y[2 * i] = from_float<T>(x0 * c - x1 * s);
    y[2 * i + 1] = from_float<T>(x0 * s + x1 * c);
  }
}

}  // namespace

template <class T>
void apply_rope(const T* x, const int32_t* positions, const float* table, T* y, int64_t rows, int64_t heads,
                int64_t width, int64_t dim, bool inverse) {
  const int64_t plain = width - dim, pairs = dim / 2;
  parallel_for(rows, 2 * heads * width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* angles = table + positions[r] * dim;
      for (int64_t h = r * heads; h < (r + 1) * heads; ++h) {
        std::copy_n(x + h * width, plain, y + h * width);
        rotate(x + h * width + plain, angles, angles + pairs, inverse ? -1.0f : 1.0f, y + h * width + plain,
               pairs);
      }
    }
  });
}

template void apply_rope<float>(const float*, const int32_t*, const float*, float*, int64_t, int64_t, int64_t,
                                int64_t, bool);
template void apply_rope<bf16>(const bf16*, const int32_t*, const float*, bf16*, int64_t, int64_t, int64_t,
                               int64_t, bool);

}  // namespace di
