#include "parallel.hpp"

#include <atomic>
#include <mutex>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#define DI_HAS_AFFINITY 1
#endif

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define DI_HAS_FORK 1
#endif

namespace di {
namespace {

std::atomic<int> requested{0};
std::atomic<int64_t> worthwhile{kWorkPerThread};
std::atomic<bool> forked{false};
std::atomic<int64_t> pinning{0};  // how often it was switched: odd is on

#ifdef DI_HAS_AFFINITY
struct Processors {
  std::mutex mutex;
  cpu_set_t allowed;         // when pinning began
  std::vector<int> numbers;  // of those
};

Processors& processors() {
  static Processors all;
  return all;
}

void set_affinity(int64_t part, bool on) {
  Processors& all = processors();
  const std::lock_guard lock(all.mutex);
  if (all.numbers.empty()) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(all.numbers[static_cast<size_t>(part) % all.numbers.size()], &one);
  sched_setaffinity(0, sizeof one, on ? &one : &all.allowed);
}

void switch_pinning(bool on) {
  Processors& all = processors();
  const std::lock_guard lock(all.mutex);
  if ((pinning.load(std::memory_order_relaxed) % 2 == 1) == on) return;
  if (on) {
    if (sched_getaffinity(0, sizeof all.allowed, &all.allowed) != 0)
      return;  // more processors than a set holds
    all.numbers.clear();
    for (int number = 0; number < CPU_SETSIZE; ++number) {
      if (CPU_ISSET(number, &all.allowed)) all.numbers.push_back(number);
    }
  }
  pinning.fetch_add(1, std::memory_order_release);
}
#endif

#ifdef DI_HAS_FORK
// A forked child has the thread runtime's memory but not its threads: it would wait for them for ever. So it
// would for one that held the mutex.
[[maybe_unused]] const int fork_handler = pthread_atfork(
#ifdef DI_HAS_AFFINITY
    [] { processors().mutex.lock(); }, [] { processors().mutex.unlock(); },
#else
    nullptr, nullptr,
#endif
    [] {
#ifdef DI_HAS_AFFINITY
      processors().mutex.unlock();
#endif
      forked.store(true, std::memory_order_relaxed);
    });
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

bool threads_are_pinned() { return pinning.load(std::memory_order_relaxed) % 2 == 1; }

void pin_threads([[maybe_unused]] bool on) {
#ifdef DI_HAS_AFFINITY
  if (threads_are_pinned() == on) return;
  if (on) place_thread(0);  // what it may run on is asked below: it may still be where it was pinned before
  switch_pinning(on);
  if (!on) place_thread(0);  // what is started from this thread inherits where it may run
#endif
}

void place_thread([[maybe_unused]] int64_t part) {
#ifdef DI_HAS_AFFINITY
  const int64_t now = pinning.load(std::memory_order_acquire);
  if (now == 0) return;                        // nearly always
  thread_local int64_t seen = 0, placed = -1;  // -1: runs where somebody else lets it run
  const bool on = now % 2 == 1;
  if (on ? seen == now && placed == part : placed == -1) return;
  set_affinity(part, on);
  seen = now;
  placed = on ? part : -1;
#endif
}

void set_num_threads(int count, int64_t work_per_thread) {
  requested.store(count, std::memory_order_relaxed);
  worthwhile.store(work_per_thread, std::memory_order_relaxed);
}

}  // namespace di
