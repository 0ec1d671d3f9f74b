// Lines of memory that come to a cache while others are computed with. Only for sources of csrc/amx.
#pragma once

#include <cstdint>

namespace di::amx {

// Asks for a line here and not sooner: gcc would ask for those of a block at once, which are more than the
// processor can wait for. It is near where it comes to the first cache, and to the second one otherwise.
template <bool kNear>
[[gnu::always_inline]] static inline void ask_line(const uint8_t* p) {
  if constexpr (kNear) {
    asm volatile("prefetcht0 %0" : : "m"(*p));
  } else {
    asm volatile("prefetcht1 %0" : : "m"(*p));
  }
}

}  // namespace di::amx
