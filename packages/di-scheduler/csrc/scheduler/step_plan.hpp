// The arrays of one step, as the runner sees them.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/planner.hpp"
#include "scheduler/types.hpp"

namespace di::scheduler {

// S sequences, R rows, W columns of the block table. di_scheduler.StepPlan describes each field. Independent
// of the scheduler once built.
struct StepPlan {
  StepPlan(const Selection& selection, std::int32_t lookback, std::int64_t step);

  std::int64_t step;
  std::int32_t table_width = 0;
  std::vector<SeqId> seq_ids;
  std::vector<std::int32_t> q_start, q_len;
  std::vector<std::int32_t> row_start;
  std::vector<std::int32_t> token_ids, positions;
  std::vector<std::int32_t> context;
  std::vector<std::int32_t> block_table;
  std::vector<std::int32_t> slots;
  std::vector<std::uint8_t> samples;
  std::vector<std::int32_t> sampling;
  std::vector<std::int32_t> prompt_len, output_len;
  std::vector<SeqId> preempted;

 private:
  void reserve(const Selection& selection, std::int32_t lookback);
  void add(const PlannedRows& rows, std::int32_t lookback);
};

}  // namespace di::scheduler
