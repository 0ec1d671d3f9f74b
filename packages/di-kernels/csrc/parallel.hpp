// The one place where threads are used. Work items never share a reduction, so results do not depend on the count.
#pragma once

#include <algorithm>
#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace di {

int num_threads();              // threads used by the kernels; default: what OpenMP offers
void set_num_threads(int count);  // count >= 1

// Calls body(begin, end) for disjoint ranges that cover [0, n). Ranges hold at least `grain` items.
template <class Body>
void parallel_for(int64_t n, int64_t grain, const Body& body) {
  if (n <= 0) return;
  const int64_t parts = std::clamp<int64_t>(n / std::max<int64_t>(grain, 1), 1, num_threads());
  if (parts == 1) {
    body(int64_t{0}, n);
    return;
  }
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads(static_cast<int>(parts))
#endif
  for (int64_t part = 0; part < parts; ++part) {
    body(n * part / parts, n * (part + 1) / parts);
  }
}

}  // namespace di
