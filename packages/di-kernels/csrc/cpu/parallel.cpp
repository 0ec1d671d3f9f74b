#include "parallel.hpp"

#include <atomic>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define DI_HAS_FORK 1
#endif

namespace di {
namespace {

std::atomic<int> requested{0};
std::atomic<int64_t> worthwhile{kWorkPerThread};
std::atomic<bool> forked{false};

#ifdef DI_HAS_FORK
// A forked child has the thread runtime's memory but not its threads: it would wait for them for ever.
[[maybe_unused]] const int fork_handler =
    pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
#endif

}  // namespace

int num_threads() {
  if (forked.load(std::memory_order_relaxed)) return 1;
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
