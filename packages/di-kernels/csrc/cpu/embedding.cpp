#include "cpu/embedding.hpp"

#include <algorithm>
#include <vector>

#include "parallel.hpp"

namespace di {

template <class T>
void embed(const int32_t* ids, int64_t rows, const Weight& table, T* y) {
  const int64_t dim = table.k;
  parallel_for(rows, 2 * dim, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(dim));
    for (int64_t r = begin; r < end; ++r) {
      if (ids[r] >= 0 && ids[r] < table.n) {
        decode_rows(table, ids[r], 1, row.data());
      } else {
        std::fill(row.begin(), row.end(), 0.0f);
      }
      narrow(row.data(), dim, y + r * dim);
    }
  });
}

template void embed<float>(const int32_t*, int64_t, const Weight&, float*);
template void embed<bf16>(const int32_t*, int64_t, const Weight&, bf16*);

}  // namespace di
