// Lines of memory that the thread reads later, for loops that ask for them while they compute.
#pragma once

#include <cstdint>

namespace di {

struct LaterLines {
  const uint8_t* at = nullptr;
  int64_t count = 0;
};

}  // namespace di
