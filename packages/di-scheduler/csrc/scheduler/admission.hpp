// What a sequence must be like to be taken.
#pragma once

#include <span>

#include "scheduler/types.hpp"

namespace di::scheduler {

// Throws AdmissionError for what can never be served: tokens that are none or too many, options that do not
// fit them.
void check_admission(const Config& config, SeqId id, std::span<const Token> tokens, double arrival,
                     const Options& options);

}  // namespace di::scheduler
