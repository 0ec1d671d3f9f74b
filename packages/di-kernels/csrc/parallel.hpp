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

// The arithmetic of the kernels for as long as it lives: round to nearest, no traps, subnormals read and
// written as zero. The bfloat16 dot instruction flushes them anyway, so everything does, on every thread and
// instruction set, whatever the host program has set.
class KernelArithmetic {
 public:
  KernelArithmetic() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040u);  // flush to zero, denormals are zero
#elif defined(__aarch64__)
    uint64_t control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    asm volatile("msr fpcr, %0" : : "r"(control | (uint64_t{1} << 24)));
#endif
  }
  ~KernelArithmetic() { std::fesetenv(&before_); }
  KernelArithmetic(const KernelArithmetic&) = delete;
  KernelArithmetic& operator=(const KernelArithmetic&) = delete;

 private:
  std::fenv_t before_;
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
    const KernelArithmetic arithmetic;
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
