// The arrays of one step, as the runner sees them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "scheduler/piece.hpp"
#include "scheduler/sequence_cache.hpp"
#include "scheduler/types.hpp"

namespace di::scheduler {

// What a step gave, in the order of the plan's sampling sequences: counts[i] tokens each, flat, and rows of
// `max_draft_tokens` proposals and confidences (spans without data where there are none).
struct StepOutcome {
  std::span<const Token> tokens;
  std::span<const std::int32_t> counts;
  std::optional<std::span<const Token>> drafts;
  std::optional<std::span<const float>> confidences;
};

// S sequences, R rows, W columns of the block table. di_scheduler.StepPlan describes each field. Independent
// of the scheduler once built.
struct StepPlan {
  std::int64_t step = 0;
  std::int32_t table_width = 0, lookback = 0, num_params = 0;
  std::vector<SeqId> seq_ids;
  std::vector<std::int32_t> q_start, q_len;
  std::vector<std::int32_t> row_start;
  std::vector<std::int32_t> token_ids, positions;
  std::vector<std::int32_t> context;
  std::vector<std::int32_t> block_table;
  std::vector<std::int32_t> slots;
  std::vector<std::uint8_t> samples, decodes;
  std::vector<std::int32_t> sampling;
  std::vector<std::int32_t> source;
  std::vector<std::int32_t> prompt_len, output_len;
  std::vector<double> params;
  std::vector<BlockId> copy_blocks, copy_slots;  // pairs (from, to)
  std::vector<SeqId> copy_ids;
  std::vector<SeqId> preempted, expired;

  // For resolve(): how many sequences the open plan samples, the tokens that each may yield at most, draft
  // rows that the table has room for, where no row may be, and whether drafts are distributed anew.
  std::size_t num_sources = 0;
  std::vector<std::int32_t> pending, draft_limit;
  std::int32_t max_drafts = 0, length_limit = 0;
  bool redistributes = false;

  std::size_t num_seqs() const { return seq_ids.size(); }
  bool has_sources() const;
  void clear();

  // Appends what a piece says; `source` as in the field.
  void add(const Piece& piece, std::int32_t source);
  void add_copy(const CacheCopy& copy);
};

using StepPlanPtr = std::shared_ptr<StepPlan>;

// Plans are built into the memory of earlier ones that nobody looks at any more. Plans may outlive their
// pool.
class StepPlanPool {
 public:
  StepPlanPool();
  StepPlanPtr take() const;

 private:
  struct Shelf;
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace di::scheduler
