// How many draft rows each decode of a plan gets.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "scheduler/ordered_queue.hpp"
#include "scheduler/sequence.hpp"
#include "scheduler/step_cost.hpp"
#include "scheduler/types.hpp"

namespace di::scheduler {

// Without a step cost every draft is verified that the budget has rows for; with one, as many as pay, by the
// rates of the round before the last (so that no decision depends on what it decides about), and the best of
// them.
class DraftPlanner {
 public:
  explicit DraftPlanner(const Config& config) : config_(config) {}

  void set_step_cost(std::optional<StepCost> cost) { cost_ = std::move(cost); }
  bool has_step_cost() const { return cost_.has_value(); }

  // Sets draft_limit and num_drafts of all running sequences. `reserved`: rows of the budget that drafts
  // leave.
  void allot(const OrderedQueue& running, std::int32_t reserved);

 private:
  std::int32_t limit(const Sequence& sequence) const;
  std::int32_t choose_total(std::int32_t budget) const;

  const Config& config_;
  std::optional<StepCost> cost_;
  // Of the present call, kept for their memory: the decodes, where the drafts of each begin, and the rates by
  // which drafts are chosen and by which they are counted.
  std::vector<Sequence*> decodes_;
  std::vector<std::int32_t> starts_, taken_;
  std::vector<float> rates_, older_rates_;
};

}  // namespace di::scheduler
