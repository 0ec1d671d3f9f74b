// What speculation planning throws; the bindings turn it into di_scheduler.speculation.SpeculationError.
#pragma once

#include <stdexcept>

namespace di::scheduler {

// An argument that is out of range. Nothing is changed.
struct SpeculationError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

}  // namespace di::scheduler
