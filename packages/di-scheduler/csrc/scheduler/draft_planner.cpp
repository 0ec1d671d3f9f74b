#include "scheduler/draft_planner.hpp"

#include <algorithm>

#include "scheduler/piece.hpp"
#include "scheduler/speculation.hpp"

namespace di::scheduler {

namespace {

// The first `count` rates; the last one known stands for those that are missing, 1 when none is.
void append_rates(const std::vector<float>& known, std::int32_t count, std::vector<float>& rates) {
  const auto n = static_cast<std::size_t>(count);
  const std::size_t present = std::min(known.size(), n);
  rates.insert(rates.end(), known.begin(), known.begin() + static_cast<std::ptrdiff_t>(present));
  rates.insert(rates.end(), n - present, known.empty() ? 1.0F : known.back());
}

}  // namespace

std::int32_t DraftPlanner::limit(const Sequence& sequence) const {
  const Limits& limits = sequence.limits();
  const std::int32_t pending = sequence.pending_tokens();
  // A token in flight is one more that is surely there; `pending` of them at most take positions.
  const std::int32_t tokens = limits.max_tokens - sequence.output_length() - (pending > 0 ? 2 : 1);
  const std::int32_t positions = config_.length_limit() - sequence.length() - pending;
  const std::int32_t drafts =
      pending > 0 ? config_.max_draft_tokens : static_cast<std::int32_t>(sequence.drafts.size());
  return std::max(0, std::min({drafts, tokens, positions}));
}

void DraftPlanner::allot(const OrderedQueue& running, std::int32_t reserved) {
  for (const SequencePtr& sequence : running) sequence->draft_limit = sequence->num_drafts = 0;
  if (config_.max_draft_tokens == 0) return;
  decodes_.clear();
  rates_.clear();
  older_rates_.clear();
  starts_.assign(1, 0);
  for (const SequencePtr& sequence : running) {
    if (!sequence->is_decode() || !is_plannable(*sequence, config_)) continue;
    const std::int32_t count = sequence->draft_limit = limit(*sequence);
    const bool in_flight = sequence->pending_tokens() > 0;
    append_rates(sequence->rates, count, rates_);
    append_rates(in_flight ? sequence->rates : sequence->previous_rates, count, older_rates_);
    starts_.push_back(starts_.back() + count);
    decodes_.push_back(sequence.get());
  }
  const auto num_decodes = static_cast<std::int32_t>(decodes_.size());
  const std::int32_t budget = std::max(0, config_.max_num_batched_tokens - num_decodes - reserved);
  const std::int32_t total = choose_total(budget);
  if (total == starts_.back()) {
    for (Sequence* sequence : decodes_) sequence->num_drafts = sequence->draft_limit;
    return;
  }
  taken_.resize(decodes_.size());
  distribute_drafts(rates_, starts_, total, taken_);
  for (std::size_t i = 0; i < decodes_.size(); ++i) decodes_[i]->num_drafts = taken_[i];
}

std::int32_t DraftPlanner::choose_total(std::int32_t budget) const {
  const auto num_decodes = static_cast<std::int32_t>(decodes_.size());
  if (!cost_) return std::min(budget, starts_.back());
  if (num_decodes == 0 || num_decodes > cost_->max_rows()) return 0;
  return choose_draft_total(*cost_, num_decodes, num_decodes, budget, older_rates_);
}

}  // namespace di::scheduler
