// A table of Engram as it comes from Python.
#pragma once

#include <optional>

#include "bind/tensor.hpp"
#include "cpu/engram.hpp"

namespace di::bind {

// Rows of float32 or bfloat16, or of FP8 with scales. The tensors must outlive the result.
EngramTable borrow_engram_table(const View& data, const std::optional<View>& scale);

}  // namespace di::bind
