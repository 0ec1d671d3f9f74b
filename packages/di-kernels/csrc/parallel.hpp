// The one place where threads are used. Work items never share a reduction, so results do not depend on the
// count.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>

#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "tile_state.hpp"

namespace di {

constexpr int64_t kWorkPerThread = 1 << 19;  // some 5 us of work: waking a thread costs about as much
constexpr int kMaxThreads = 4096;

int num_threads();          // threads used by the kernels; default: what OpenMP offers; 1 in a forked child
int64_t work_per_thread();  // operations that are worth waking a thread for
void set_num_threads(int count, int64_t work_per_thread);  // 1..kMaxThreads, at least 1

// With pinned threads, the thread that has part p of a loop stays on the p-th processor that the process may
// use, counted when pinning began: it finds in its caches what its part of the loop before has left there.
// Off by default; switched off, threads may run anywhere again, each from its next part on. Does nothing
// where the system has no affinity, or more processors than its set holds.
void pin_threads(bool on);
bool threads_are_pinned();
void place_thread(int64_t part);

// How this thread computes: rounding, subnormals, traps. No loop uses anything but the registers that this
// word rules, and reading it costs next to nothing, unlike <cfenv>.
#if defined(__x86_64__)
constexpr uint64_t kDefaultControl = 0x1f80, kControlBits = 0xffc0;  // the others tell what has happened
constexpr uint64_t kFlushSubnormals = 0x8040;                        // flush to zero, denormals are zero
inline uint64_t arithmetic_control() { return _mm_getcsr(); }
inline void set_arithmetic_control(uint64_t value) { _mm_setcsr(static_cast<uint32_t>(value)); }
#elif defined(__aarch64__)
constexpr uint64_t kDefaultControl = 0, kControlBits = ~uint64_t{0};
constexpr uint64_t kFlushSubnormals = uint64_t{1} << 24;
inline uint64_t arithmetic_control() {
  uint64_t value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}
inline void set_arithmetic_control(uint64_t value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
constexpr uint64_t kDefaultControl = 0, kControlBits = 0, kFlushSubnormals = 0;
inline uint64_t arithmetic_control() { return 0; }
inline void set_arithmetic_control(uint64_t) {}
#endif

// Default rounding and subnormals for as long as it lives: a host program may have set other ones, and then
// for some of its threads only.
class DefaultArithmetic {
 public:
  DefaultArithmetic() : before_(arithmetic_control()) {
    if (changed()) set_arithmetic_control(kDefaultControl);
  }
  ~DefaultArithmetic() {
    if (changed()) set_arithmetic_control(before_);
  }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

 private:
  bool changed() const { return (before_ & kControlBits) != kDefaultControl; }

  uint64_t before_;
};

// Inside the default arithmetic: subnormals are read and written as zero for as long as it lives. The
// bfloat16 dot instruction always does that, so every loop that uses dot_bf16 runs under this, on every
// instruction set.
class FlushedSubnormals {
 public:
  FlushedSubnormals() { set_arithmetic_control(arithmetic_control() | kFlushSubnormals); }
  ~FlushedSubnormals() { set_arithmetic_control(arithmetic_control() & ~kFlushSubnormals); }
  FlushedSubnormals(const FlushedSubnormals&) = delete;
  FlushedSubnormals& operator=(const FlushedSubnormals&) = delete;
};

constexpr int64_t kPerElement = 16;  // operations that take as long as reading, changing and writing a value

// Threads that n > 0 items are worth. `cost` is about the number of multiplications of one item in a dense
// product: small work stays on the calling thread, where it is done sooner than threads are woken.
inline int64_t parts_worth(int64_t n, int64_t cost) {
  const int64_t worthwhile = n * std::max<int64_t>(cost, 1) / work_per_thread();
  return std::clamp<int64_t>(worthwhile, 1, std::min<int64_t>(num_threads(), n));
}

// Whether this thread computes a part of a loop: the other threads have theirs.
inline bool in_parallel() {
#ifdef _OPENMP
  return omp_get_level() > 0;
#else
  return false;
#endif
}

// The exception of the first range, of those that were thrown: an exception that left its thread would end
// the process.
class FirstFailure {
 public:
  template <class Body>
  void guard(int64_t range, const Body& body) {
    try {
      body();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (range < range_) failure_ = std::current_exception();
      range_ = std::min(range_, range);
    }
  }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::mutex mutex_;
  int64_t range_ = INT64_MAX;
  std::exception_ptr failure_;
};

// Calls body(begin, end) for disjoint ranges that cover [0, n), a range for each of the parts and a thread
// for each range. What a body throws reaches the caller; of several exceptions, that of the first range does.
// A loop inside a part of another one stays on its thread, and the thread where it is: it would wait on the
// processor of the first part for a whole time slice.
template <class Body>
void for_parts(int64_t n, int64_t parts, const Body& body) {
  if (in_parallel()) {
    const DefaultArithmetic arithmetic;
    const TilesUntilHere tiles;  // the loop around may be a host program's, which knows nothing of them
    body(int64_t{0}, n);
    return;
  }
  const auto run = [&](int64_t part) {
    const DefaultArithmetic arithmetic;
    const TilesUntilHere tiles;
    place_thread(part);
    body(n * part / parts, n * (part + 1) / parts);
  };
  if (parts == 1) {
    run(0);
    return;
  }
  FirstFailure failure;
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads(static_cast<int>(parts))
#endif
  for (int64_t part = 0; part < parts; ++part) {
    failure.guard(part, [&] { run(part); });
  }
  failure.rethrow();
}

// The same on as many threads as the items are worth.
template <class Body>
void parallel_for(int64_t n, int64_t cost, const Body& body) {
  if (n > 0) for_parts(n, parts_worth(n, cost), body);
}

// The same for items of unequal cost: the ranges are shorter, and a thread that is done takes another one.
template <class Body>
void parallel_for_uneven(int64_t n, int64_t cost, const Body& body) {
  if (n <= 0) return;
  constexpr int64_t kRangesPerThread = 8;
  const int64_t threads = parts_worth(n, cost);
  const int64_t ranges = threads == 1 ? 1 : std::min(n, kRangesPerThread * threads);
  std::atomic<int64_t> next{0};
  for_parts(threads, threads, [&](int64_t, int64_t) {
    for (int64_t i = next++; i < ranges; i = next++) body(n * i / ranges, n * (i + 1) / ranges);
  });
}

}  // namespace di
