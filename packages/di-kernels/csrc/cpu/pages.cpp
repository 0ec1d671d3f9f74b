#include "cpu/pages.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace di {

bool advise_large_pages([[maybe_unused]] void* p, [[maybe_unused]] int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kLarge = uintptr_t{2} << 20;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(p) + kLarge - 1) / kLarge * kLarge;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(bytes)) / kLarge * kLarge;
  return begin < end && madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE) == 0;
#else
  return false;
#endif
}

}  // namespace di
