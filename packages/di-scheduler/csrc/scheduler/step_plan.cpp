#include "scheduler/step_plan.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

namespace di::scheduler {

bool StepPlan::has_sources() const {
  return std::any_of(source.begin(), source.end(), [](std::int32_t s) { return s >= 0; });
}

void StepPlan::clear() {
  table_width = 0;
  for (auto* values :
       {&q_start, &q_len, &row_start, &token_ids, &positions, &context, &block_table, &slots, &sampling,
        &source, &prompt_len, &output_len, &copy_blocks, &copy_slots, &pending, &draft_limit}) {
    values->clear();
  }
  for (auto* values : {&seq_ids, &copy_ids, &preempted, &expired}) values->clear();
  for (auto* values : {&samples, &decodes}) values->clear();
  params.clear();
  row_start.push_back(0);
}

void StepPlan::add(const Piece& piece, std::int32_t source_index) {
  const Sequence& sequence = *piece.sequence;
  const auto tokens = sequence.tokens();

  if (piece.samples) sampling.push_back(static_cast<std::int32_t>(seq_ids.size()));
  samples.push_back(piece.samples ? 1 : 0);
  decodes.push_back(piece.decode ? 1 : 0);
  source.push_back(source_index);
  pending.push_back(piece.pending);
  draft_limit.push_back(piece.draft_limit);
  seq_ids.push_back(sequence.id());
  q_start.push_back(piece.q_start);
  q_len.push_back(piece.q_len);
  row_start.push_back(row_start.back() + piece.q_len);
  slots.push_back(sequence.slot);
  prompt_len.push_back(sequence.prompt_length());
  output_len.push_back(sequence.output_length() + (source_index >= 0 ? 1 : 0));
  const auto& values = sequence.options().params;
  params.insert(params.end(), values.begin(), values.end());

  for (std::int32_t position = piece.q_start; position < piece.q_start + piece.q_len; ++position) {
    const std::int32_t draft = position - sequence.length();
    Token token = -1;  // to be resolved
    if (draft < 0) {
      token = tokens[static_cast<std::size_t>(position)];
    } else if (source_index < 0) {
      token = sequence.drafts[static_cast<std::size_t>(draft)];
    }
    token_ids.push_back(token);
    positions.push_back(position);
  }
  for (std::int32_t k = 0; k < lookback; ++k) {
    const std::int32_t position = piece.q_start - 1 - k;
    context.push_back(position >= 0 ? tokens[static_cast<std::size_t>(position)] : -1);
  }
  block_table.insert(block_table.end(), sequence.block_table.begin(), sequence.block_table.end());
  block_table.resize(seq_ids.size() * static_cast<std::size_t>(table_width), 0);
}

void StepPlan::add_copy(const CacheCopy& copy) {
  if (copy.from_block != 0) copy_blocks.insert(copy_blocks.end(), {copy.from_block, copy.to_block});
  copy_slots.insert(copy_slots.end(), {copy.from_slot, copy.to_slot});
  copy_ids.push_back(copy.child->id());
}

struct StepPlanPool::Shelf {
  std::mutex mutex;  // the last look at a plan may end on any thread
  std::vector<std::unique_ptr<StepPlan>> plans;
};

StepPlanPool::StepPlanPool() : shelf_(std::make_shared<Shelf>()) {}

StepPlanPtr StepPlanPool::take() const {
  std::unique_ptr<StepPlan> plan;
  {
    const std::scoped_lock lock(shelf_->mutex);
    if (!shelf_->plans.empty()) {
      plan = std::move(shelf_->plans.back());
      shelf_->plans.pop_back();
    }
  }
  if (!plan) plan = std::make_unique<StepPlan>();
  plan->clear();
  const auto give_back = [shelf = std::weak_ptr(shelf_)](StepPlan* used) {
    std::unique_ptr<StepPlan> owned(used);
    if (const auto open = shelf.lock()) {
      const std::scoped_lock lock(open->mutex);
      open->plans.push_back(std::move(owned));
    }
  };
  return {plan.release(), give_back};
}

}  // namespace di::scheduler
