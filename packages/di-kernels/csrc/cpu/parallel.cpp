#include "parallel.hpp"

#include <atomic>

namespace di {
namespace {

std::atomic<int> requested{0};
std::atomic<int64_t> worthwhile{kWorkPerThread};

}  // namespace

int num_threads() {
  const int count = requested.load(std::memory_order_relaxed);
  if (count > 0) return count;
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

int64_t work_per_thread() { return worthwhile.load(std::memory_order_relaxed); }

void set_num_threads(int count, int64_t work_per_thread) {
  requested.store(count, std::memory_order_relaxed);
  worthwhile.store(work_per_thread, std::memory_order_relaxed);
}

}  // namespace di
