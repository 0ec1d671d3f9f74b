// The one place where threads are used. Work items never share a reduction, so results do not depend on the
// count.
#pragma once

#include <algorithm>
#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace di {

constexpr int64_t kWorkPerThread = 1 << 16;

int num_threads();          // threads used by the kernels; default: what OpenMP offers
int64_t work_per_thread();  // operations that are worth waking a thread for
void set_num_threads(int count, int64_t work_per_thread);  // both at least 1

// Calls body(begin, end) for disjoint ranges that cover [0, n). `cost` is about the number of scalar
// operations of one item: small work stays on the calling thread, where it is done sooner than threads are
// woken.
template <class Body>
void parallel_for(int64_t n, int64_t cost, const Body& body) {
  if (n <= 0) return;
  const int64_t worthwhile = n * std::max<int64_t>(cost, 1) / work_per_thread();
  const int64_t parts = std::clamp<int64_t>(worthwhile, 1, std::min<int64_t>(num_threads(), n));
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
