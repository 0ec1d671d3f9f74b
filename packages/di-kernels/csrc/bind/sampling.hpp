// Sampling parameters as they come from Python.
#pragma once

#include <cstdint>

#include "cpu/sampling.hpp"

namespace di::bind {

// `count` records of sampling parameters, as bytes. Throws the SamplingParametersError of Python for another
// size and for values out of range, which would leave nothing to draw from.
const SamplingParameters* sampling_parameters(const uint8_t* data, int64_t size, int64_t count);

}  // namespace di::bind
