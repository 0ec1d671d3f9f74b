// What the scheduler throws. The bindings turn each into the Python class of the same name.
#pragma once

#include <stdexcept>
#include <string>

namespace di::scheduler {

// An operation on a pool that its reference counts forbid. The pool is unchanged.
struct BlockPoolError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// plan() and commit() called out of turn. Nothing is changed.
struct StepOrderError : std::logic_error {
  using std::logic_error::logic_error;
};

// A setting or an argument that is out of range. Nothing is changed.
struct ConfigError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// A sequence that cannot be taken. `reason` is one of di_scheduler.AdmissionReason.
struct AdmissionError : std::invalid_argument {
  AdmissionError(const char* reason, const std::string& message)
      : std::invalid_argument(message), reason(reason) {}
  const char* reason;
};

}  // namespace di::scheduler
