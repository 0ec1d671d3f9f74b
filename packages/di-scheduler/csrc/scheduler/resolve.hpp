// Turns a plan that was made while a step was in flight into the plan that is computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/step_plan.hpp"

namespace di::scheduler {

// Throws std::invalid_argument unless the arrays are those of a step with `num_sampling` sampling sequences.
void check_outcome(const StepOutcome& outcome, std::size_t num_sampling, std::int32_t max_drafts);

// Fills `to` (cleared) with `from`, its unknowns resolved by what the step before gave; says which sequences
// of `from` are in it, in order. Reads nothing else, so that scheduler and device come to the same plan by
// themselves. Throws std::invalid_argument for an outcome that cannot be of that step. docs/interfaces.md,
// "Asynchronous steps".
std::vector<std::int32_t> resolve(const StepPlan& from, const StepOutcome& outcome, StepPlan& to);

// Proposals before the first -1 of row `index`; none without drafts.
std::span<const Token> draft_row(const StepOutcome& outcome, std::size_t index, std::int32_t max_drafts);

// Their running products of confidences, or ones where there are no confidences; appended to `rates`.
void append_draft_rates(const StepOutcome& outcome, std::size_t index, std::int32_t max_drafts,
                        std::size_t count, std::vector<float>& rates);

}  // namespace di::scheduler
