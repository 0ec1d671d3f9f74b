// How many drafts of a step are verified, and whose. Pure functions.
//
// A draft's *rate* is the probability that it and all drafts before it are accepted: the running product of
// its sequence's confidences. Whether a draft is verified may depend on nothing that was drawn after it, or
// rejection sampling is biased (decoding spec, 10.6). Hence two decisions: the total comes from rates that
// are one round older than the drafts (`choose_draft_total`), the split from the rates of the drafts
// themselves (`distribute_drafts`), in which a draft's rank depends on no later draft of its sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/speculation_error.hpp"
#include "scheduler/step_cost.hpp"

namespace di::scheduler {

// Throws SpeculationError unless `starts` delimits sequences of drafts: sequence i owns [starts[i],
// starts[i+1]) of num_rates, all of them in order and each possibly none.
void check_starts(std::span<const std::int32_t> starts, std::size_t num_rates);

// Rates of one sequence: rates[i] = confidences[0] * ... * confidences[i], in float32, left to right. A
// confidence comes from a model, so a bad one costs its drafts and nothing else: NaN and values below 0 count
// as 0, values above 1 as 1. Rates are therefore in [0, 1] and non-increasing, as the functions below demand.
void accumulate_rates(std::span<const float> confidences, std::span<float> rates);

// The number m of drafts, from 0 to max_drafts, with the most expected tokens per millisecond,
//   (num_seqs + sum of the m largest rates) / cost.milliseconds(base_rows + m, num_seqs);
// among equals the smallest (scheduler spec, 12.3). At most O(D log D) for D rates.
//
// base_rows: rows that the step has without drafts; num_seqs: decode sequences, each of which yields one
// token for sure; rates: of all drafts, in any order, from one round before the drafts. Counts that make a
// step larger than the curve allows do not take part; without rates, or with max_drafts 0, the answer is 0.
// Throws SpeculationError for a rate outside [0, 1], a negative count, and base_rows below num_seqs or beyond
// the curve.
std::int32_t choose_draft_total(const StepCost& cost, std::int32_t base_rows, std::int32_t num_seqs,
                                std::int32_t max_drafts, std::vector<float> rates);

// taken[i] = how many drafts of sequence i are among the `total` drafts with the largest rates, ties to the
// lower flat index (scheduler spec, 12.3 and 13.2). They are the first ones of the sequence. O(D) on average.
//
// rates: flat; sequence i owns [starts[i], starts[i+1]), non-increasing there. Throws SpeculationError,
// before it writes, for rates or starts that break these rules and for a total outside [0, number of rates].
void distribute_drafts(std::span<const float> rates, std::span<const std::int32_t> starts, std::int32_t total,
                       std::span<std::int32_t> taken);

}  // namespace di::scheduler
