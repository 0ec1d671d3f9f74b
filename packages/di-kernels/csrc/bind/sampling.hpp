// Sampling parameters as they come from Python.
#pragma once

#include <cstdint>

#include "cpu/sampling.hpp"

namespace di::bind {

// Records of sampling parameters, as bytes. Throws a ValueError of Python for values out of range, which
// would leave nothing to draw from.
const SamplingParameters* sampling_parameters(const uint8_t* data, int64_t count);

}  // namespace di::bind
