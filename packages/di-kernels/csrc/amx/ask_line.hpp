// Lines of memory that come to a cache while others are computed with. Only for sources of csrc/amx.
//
// Each is asked for where it says so and not sooner: gcc would ask for those of a block at once, which are
// more than the processor can wait for.
#pragma once

#include <cstdint>

#include "simd/later_lines.hpp"

namespace di::amx {

[[gnu::always_inline]] static inline void ask_for_first_cache(const uint8_t* line) {
  asm volatile("prefetcht0 %0" : : "m"(*line));
}
[[gnu::always_inline]] static inline void ask_for_second_cache(const uint8_t* line) {
  asm volatile("prefetcht1 %0" : : "m"(*line));
}

// Asks for the next one, and no longer for it.
[[gnu::always_inline]] static inline void ask_next(LaterLines& lines) {
  if (lines.count <= 0) return;
  ask_for_second_cache(lines.at);
  lines = {lines.at + 64, lines.count - 1};
}

}  // namespace di::amx
