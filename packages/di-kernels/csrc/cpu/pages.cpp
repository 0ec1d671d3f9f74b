#include "cpu/pages.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#if __has_include(<linux/mempolicy.h>)
#include <linux/mempolicy.h>
#define DI_HAS_MEMORY_NODES 1
#endif
#endif

namespace di {
namespace {

[[maybe_unused]] constexpr uintptr_t kLargePage = uintptr_t{2} << 20;

// By system calls: the library that has functions for them is seldom installed.
void interleave([[maybe_unused]] void* p, [[maybe_unused]] uintptr_t bytes) {
#if defined(DI_HAS_MEMORY_NODES)
  constexpr unsigned long kMostNodes = 1024;
  unsigned long nodes[kMostNodes / (8 * sizeof(unsigned long))] = {};
  int policy = MPOL_DEFAULT;
  if (syscall(SYS_get_mempolicy, &policy, nullptr, 0, nullptr, 0) != 0 || policy != MPOL_DEFAULT) return;
  if (syscall(SYS_get_mempolicy, nullptr, nodes, kMostNodes, nullptr, MPOL_F_MEMS_ALLOWED) != 0) return;
  syscall(SYS_mbind, p, bytes, MPOL_INTERLEAVE, nodes, kMostNodes, 0);
#endif
}

}  // namespace

void advise_pages([[maybe_unused]] void* p, [[maybe_unused]] int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(p) + kLargePage - 1) / kLargePage * kLargePage;
  const uintptr_t end =
      (reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(bytes)) / kLargePage * kLargePage;
  if (begin >= end) return;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  interleave(reinterpret_cast<void*>(begin), end - begin);
#endif
}

}  // namespace di
