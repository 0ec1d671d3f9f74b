// Checks of indices that come in arrays: all rows are checked before a kernel reads anything through them.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace di {

[[noreturn]] inline void throw_out_of_range(const char* name, int64_t row, int64_t value, int64_t low,
                                            int64_t high) {
  throw std::out_of_range(std::string(name) + " of row " + std::to_string(row) + " is " +
                          std::to_string(value) + "; allowed: " + std::to_string(low) + " to " +
                          std::to_string(high - 1));
}

// Throws std::out_of_range unless low <= value < high.
inline void require_range(const char* name, int64_t row, int64_t value, int64_t low, int64_t high) {
  if (value < low || value >= high) throw_out_of_range(name, row, value, low, high);
}

}  // namespace di
