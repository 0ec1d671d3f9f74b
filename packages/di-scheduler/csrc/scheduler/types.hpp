// Plain value types shared by every part of the scheduler.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace di::scheduler {

using SeqId = std::int64_t;
using Token = std::int32_t;
using BlockId = std::int32_t;  // of a cache block or of a state slot; 0 is reserved and means "none"
using Ticket = std::int64_t;   // of a transfer between engines

enum class StepPolicy : std::int8_t { kMixed = 0, kHomogeneous = 1 };
enum class StepKind : std::int8_t { kAny = 0, kDecode = 1, kPrefill = 2 };
enum class EngineKind : std::int8_t { kNormal = 0, kPrefillOnly = 1, kDecodeOnly = 2 };

enum class FinishReason : std::int8_t {
  kNone = 0,
  kStop = 1,
  kStopToken = 2,
  kStopString = 3,
  kLength = 4,
  kAbort = 5,
  kError = 6,
  kDeadline = 7,
  kPreempted = 8,
  kHandedOver = 9,
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
  std::int32_t max_draft_tokens;
  std::int32_t max_steps_in_flight;
  std::int64_t max_step_context;
  std::int32_t chunk_align;
  std::int32_t watermark_blocks;
  std::int32_t max_overtakes;
  std::int32_t lookback;
  std::int32_t num_params;
  StepPolicy policy;
  EngineKind kind;

  // Positions that the pool can hold when one sequence has all of it.
  std::int64_t pool_tokens() const { return std::int64_t{num_blocks - 1} * block_size; }

  // Tokens after which any sequence ends. Because no sequence outgrows the pool, one that runs alone never
  // lacks a block, which is what makes preemption terminate.
  std::int32_t length_limit() const {
    return static_cast<std::int32_t>(std::min<std::int64_t>(max_model_len, pool_tokens()));
  }

  std::int32_t blocks_for(std::int64_t tokens) const {
    return static_cast<std::int32_t>((tokens + block_size - 1) / block_size);
  }

  // What a chunk of that many rows takes of a step's budget.
  std::int32_t padded(std::int32_t rows) const {
    return (rows + chunk_align - 1) / chunk_align * chunk_align;
  }

  // The largest image that decodes cannot keep out of a step however many there are.
  std::int32_t largest_image() const {
    const std::int64_t decodes = std::int64_t{max_num_seqs - 1} * (1 + max_draft_tokens);
    const std::int64_t room = std::max<std::int64_t>(max_num_batched_tokens - decodes, 0);
    const auto least = static_cast<std::int32_t>(std::min<std::int64_t>(max_chunk_tokens, room));
    return least / chunk_align * chunk_align;
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

// Tokens `first` .. `first + count - 1` of a prompt.
struct ImageSpan {
  std::int32_t first;
  std::int32_t count;
  std::int32_t end() const { return first + count; }
};

// How one sequence is treated (di_scheduler.SequenceOptions).
struct Options {
  std::int32_t priority = 0;
  std::int64_t user = 0;
  double weight = 1.0;
  bool ready = true;
  std::optional<double> deadline;
  std::vector<std::int32_t> checkpoints;
  std::vector<ImageSpan> images;
  std::vector<double> params;
};

}  // namespace di::scheduler
