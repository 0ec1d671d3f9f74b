// The one place where threads are used. Work items never share a reduction, so results do not depend on the
// count.
#pragma once

#include <algorithm>
#include <cfenv>
#include <cstdint>
#include <exception>

#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace di {

constexpr int64_t kWorkPerThread = 1 << 16;
constexpr int kMaxThreads = 4096;

int num_threads();          // threads used by the kernels; default: what OpenMP offers; 1 in a forked child
int64_t work_per_thread();  // operations that are worth waking a thread for
void set_num_threads(int count, int64_t work_per_thread);  // 1..kMaxThreads, at least 1

// With pinned threads, the thread that has part p of a loop stays on the p-th processor that the process may
// use, counted when pinning began: parts of loops over the same rows read memory that their own thread
// touched first, which on a machine of several memory nodes is the near one. Off by default; switched off,
// threads may run anywhere again, each from its next part on. Does nothing where the system has no affinity.
void pin_threads(bool on);
bool threads_are_pinned();
void place_thread(int64_t part);

// Default rounding and subnormals for as long as it lives: a host program may have set other ones, and then
// for some of its threads only.
class DefaultArithmetic {
 public:
  DefaultArithmetic() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultArithmetic() { std::fesetenv(&before_); }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

 private:
  std::fenv_t before_;
};

// Inside the default arithmetic: subnormals are read and written as zero for as long as it lives. The
// bfloat16 dot instruction always does that, so every loop that uses dot_bf16 runs under this, on every
// instruction set.
class FlushedSubnormals {
 public:
  FlushedSubnormals() { set(control() | kFlush); }
  ~FlushedSubnormals() { set(control() & ~kFlush); }
  FlushedSubnormals(const FlushedSubnormals&) = delete;
  FlushedSubnormals& operator=(const FlushedSubnormals&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint32_t kFlush = 0x8040;  // flush to zero, denormals are zero
  static uint32_t control() { return _mm_getcsr(); }
  static void set(uint32_t value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  static constexpr uint64_t kFlush = uint64_t{1} << 24;
  static uint64_t control() {
    uint64_t value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set(uint64_t value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
  static constexpr uint32_t kFlush = 0;
  static uint32_t control() { return 0; }
  static void set(uint32_t) {}
#endif
};

// Calls body(begin, end) for disjoint ranges that cover [0, n). `cost` is about the number of scalar
// operations of one item: small work stays on the calling thread, where it is done sooner than threads are
// woken. What a body throws reaches the caller; of several exceptions, one does.
template <class Body>
void parallel_for(int64_t n, int64_t cost, const Body& body) {
  if (n <= 0) return;
  const int64_t worthwhile = n * std::max<int64_t>(cost, 1) / work_per_thread();
  const int64_t parts = std::clamp<int64_t>(worthwhile, 1, std::min<int64_t>(num_threads(), n));
  const auto run = [&](int64_t part) {
    const DefaultArithmetic arithmetic;
    place_thread(part);
    body(n * part / parts, n * (part + 1) / parts);
  };
  if (parts == 1) {
    run(0);
    return;
  }
  std::exception_ptr failure;  // an exception that left its thread would end the process
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads(static_cast<int>(parts))
#endif
  for (int64_t part = 0; part < parts; ++part) {
    try {
      run(part);
    } catch (...) {
#ifdef _OPENMP
#pragma omp critical(di_parallel_failure)
#endif
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace di
