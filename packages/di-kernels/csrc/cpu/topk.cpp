#include "cpu/topk.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

#include "parallel.hpp"

namespace di {

int64_t select_largest(const uint32_t* keys, int64_t n, int64_t k, std::vector<uint32_t>& scratch,
                       int32_t* out) {
  if (n <= k) {
    std::iota(out, out + n, 0);
    return n;
  }
  scratch.assign(keys, keys + n);
  std::nth_element(scratch.begin(), scratch.begin() + (k - 1), scratch.end(), std::greater<>());
  const uint32_t boundary = scratch[static_cast<size_t>(k - 1)];
  const auto above = std::count_if(scratch.begin(), scratch.begin() + k,
                                   [boundary](uint32_t key) { return key > boundary; });
  int64_t ties = k - above;  // keys equal to the boundary that still fit
  int64_t count = 0;
  for (int64_t i = 0; i < n && count < k; ++i) {
    if (keys[i] < boundary || (keys[i] == boundary && ties == 0)) continue;
    if (keys[i] == boundary) --ties;
    out[count++] = static_cast<int32_t>(i);
  }
  return k;
}

void topk_indices(const float* scores, int64_t stride, int64_t rows, int64_t n, const int32_t* lengths,
                  int64_t k, int32_t* out) {
  parallel_for(rows, 4 * n, [&](int64_t begin, int64_t end) {
    std::vector<uint32_t> keys, scratch;
    for (int64_t r = begin; r < end; ++r) {
      const int64_t length = std::clamp<int64_t>(lengths[r], 0, n);
      keys.resize(static_cast<size_t>(length));
      for (int64_t i = 0; i < length; ++i) keys[i] = order_key(scores[r * stride + i]);
      const int64_t count = select_largest(keys.data(), length, k, scratch, out + r * k);
      std::fill(out + r * k + count, out + (r + 1) * k, -1);
    }
  });
}

}  // namespace di
