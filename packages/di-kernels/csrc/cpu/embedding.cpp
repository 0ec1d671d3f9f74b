#include "cpu/embedding.hpp"

#include <algorithm>

#include "parallel.hpp"
#include "simd/engram.hpp"

namespace di {

template <class T>
void embed(const int32_t* ids, int64_t rows, const Weight& table, T* y) {
  const int64_t dim = table.k;
  const auto& loops = engram_simd::active().of<T>();
  const auto convert = table.format == WeightFormat::bfloat16 ? loops.from_b16 : loops.from_f32;
  parallel_for(rows, dim / 2, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (ids[r] >= 0 && ids[r] < table.n) {
        convert(table.data + ids[r] * table.row_bytes, dim, y + r * dim);
      } else {
        std::fill_n(y + r * dim, dim, from_float<T>(0.0f));
      }
    }
  });
}

template void embed<float>(const int32_t*, int64_t, const Weight&, float*);
template void embed<bf16>(const int32_t*, int64_t, const Weight&, bf16*);

}  // namespace di
