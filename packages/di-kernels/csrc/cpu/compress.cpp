#include "cpu/compress.hpp"

#include "cpu/range.hpp"
#include "parallel.hpp"
#include "simd/compress.hpp"

namespace di {
namespace {

void check(const PairStep& step, const PairRing& ring, const PairRows& pairs) {
  for (int64_t i = 0; i < pairs.count; ++i) {
    require_range("last", i, pairs.last[i], 0, step.rows);
    require_range("first", i, pairs.first[i], -1, step.rows);
    if (pairs.first[i] >= 0) continue;
    require_range("slot", i, pairs.slot[i], 0, ring.slots);
    require_range("cell", i, pairs.cell[i], 0, ring.cells);
  }
}

}  // namespace

template <class T>
void compress_pairs(const PairStep& step, const PairRing& ring, const PairRows& pairs, int64_t dim, T* out) {
  check(step, ring, pairs);
  const auto pool = compress_simd::active().of<T>().pool;
  parallel_for(pairs.count, 32 * dim, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const bool fresh = pairs.first[i] >= 0;
      const float* first =
          fresh ? step.data + pairs.first[i] * step.row_stride
                : ring.data + pairs.slot[i] * ring.slot_stride + pairs.cell[i] * ring.cell_stride;
      const float* first_latent = first + (fresh ? step.part_stride : ring.part_stride);
      const float* last = step.data + pairs.last[i] * step.row_stride;
      const float* last_latent = last + step.part_stride;
      pool(first, first_latent, last, last_latent, dim, out + i * dim);
    }
  });
}

template void compress_pairs<float>(const PairStep&, const PairRing&, const PairRows&, int64_t, float*);
template void compress_pairs<bf16>(const PairStep&, const PairRing&, const PairRows&, int64_t, bf16*);

}  // namespace di
