// Plain value types shared by every part of the scheduler.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace di::scheduler {

using SeqId = std::int64_t;
using Token = std::int32_t;
using BlockId = std::int32_t;  // of a cache block or of a state slot; 0 is reserved and means "none"

enum class StepPolicy : std::int8_t { kMixed = 0, kHomogeneous = 1 };

enum class FinishReason : std::int8_t {
  kNone = 0,
  kStop = 1,
  kStopToken = 2,
  kStopString = 3,
  kLength = 4,
  kAbort = 5,
  kError = 6,
};

// Validated by the caller (di_scheduler.SchedulerConfig); see there for the meaning of each field.
struct Config {
  std::int32_t num_blocks;
  std::int32_t num_slots;
  std::int32_t block_size;
  std::int32_t max_num_seqs;
  std::int32_t max_num_batched_tokens;
  std::int32_t max_chunk_tokens;
  std::int32_t max_model_len;
  std::int32_t lookback;
  StepPolicy policy;

  // Positions that the pool can hold when one sequence has all of it.
  std::int64_t pool_tokens() const { return std::int64_t{num_blocks - 1} * block_size; }

  // Tokens after which any sequence ends. Because no sequence outgrows the pool, one that runs alone never
  // lacks a block, which is what makes preemption terminate.
  std::int32_t length_limit() const {
    return static_cast<std::int32_t>(std::min<std::int64_t>(max_model_len, pool_tokens()));
  }

  std::int32_t blocks_for(std::int32_t tokens) const {
    return static_cast<std::int32_t>((std::int64_t{tokens} + block_size - 1) / block_size);
  }
};

// When one sequence ends by itself (di_scheduler.SequenceLimits).
struct Limits {
  std::int32_t max_tokens;
  std::int32_t min_tokens;
  std::vector<Token> eos_token_ids;
  std::vector<Token> stop_token_ids;
  bool ignore_eos;
};

}  // namespace di::scheduler
