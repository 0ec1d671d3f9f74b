#include "scheduler/step_plan.hpp"

#include <algorithm>

namespace di::scheduler {

StepPlan::StepPlan(const Selection& selection, std::int32_t lookback, std::int64_t step)
    : step(step), preempted(selection.preempted) {
  reserve(selection, lookback);
  row_start.push_back(0);
  for (const PlannedRows& rows : selection.rows) add(rows, lookback);
}

void StepPlan::reserve(const Selection& selection, std::int32_t lookback) {
  const std::size_t num_seqs = selection.rows.size();
  for (const PlannedRows& rows : selection.rows) {
    table_width = std::max(table_width, static_cast<std::int32_t>(rows.sequence->block_table.size()));
  }
  block_table.reserve(num_seqs * static_cast<std::size_t>(table_width));
  context.reserve(num_seqs * static_cast<std::size_t>(lookback));
  token_ids.reserve(static_cast<std::size_t>(selection.num_rows));
  positions.reserve(static_cast<std::size_t>(selection.num_rows));
}

void StepPlan::add(const PlannedRows& rows, std::int32_t lookback) {
  const Sequence& sequence = *rows.sequence;
  const auto tokens = sequence.tokens();

  if (rows.samples) sampling.push_back(static_cast<std::int32_t>(seq_ids.size()));
  samples.push_back(rows.samples ? 1 : 0);
  seq_ids.push_back(sequence.id());
  q_start.push_back(rows.q_start);
  q_len.push_back(rows.q_len);
  row_start.push_back(row_start.back() + rows.q_len);
  slots.push_back(sequence.slot);
  prompt_len.push_back(sequence.prompt_length());
  output_len.push_back(sequence.output_length());

  for (std::int32_t position = rows.q_start; position < rows.q_start + rows.q_len; ++position) {
    token_ids.push_back(tokens[static_cast<std::size_t>(position)]);
    positions.push_back(position);
  }
  for (std::int32_t k = 0; k < lookback; ++k) {
    const std::int32_t position = rows.q_start - 1 - k;
    context.push_back(position >= 0 ? tokens[static_cast<std::size_t>(position)] : -1);
  }
  block_table.insert(block_table.end(), sequence.block_table.begin(), sequence.block_table.end());
  block_table.resize(seq_ids.size() * static_cast<std::size_t>(table_width), 0);
}

}  // namespace di::scheduler
