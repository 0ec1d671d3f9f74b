#include "parallel.hpp"

#include <atomic>

namespace di {
namespace {

std::atomic<int> requested{0};

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

void set_num_threads(int count) { requested.store(count, std::memory_order_relaxed); }

}  // namespace di
