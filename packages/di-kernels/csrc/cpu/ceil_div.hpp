// Division of counts that rounds up.
#pragma once

#include <cstdint>

namespace di {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

}  // namespace di
