// One request inside the scheduler.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "scheduler/types.hpp"

namespace di::scheduler {

enum class SequenceState : std::int8_t { kWaiting = 0, kRunning = 1, kFinished = 2 };

// Tokens, progress and life-cycle state of one request. A sequence never changes a pool: SequenceCache fills
// and empties its block table and slot.
class Sequence {
 public:
  Sequence(SeqId id, std::uint64_t order, double arrival, std::span<const Token> prompt, Limits limits)
      : id_(id),
        order_(order),
        arrival_(arrival),
        prompt_length_(static_cast<std::int32_t>(prompt.size())),
        tokens_(prompt.begin(), prompt.end()),
        limits_(std::move(limits)) {}

  SeqId id() const { return id_; }
  std::uint64_t order() const { return order_; }  // of add(): unique, decides admission and victims
  double arrival() const { return arrival_; }     // as the caller gave it
  const Limits& limits() const { return limits_; }

  // Committed tokens only: the prompt, then what was generated.
  std::span<const Token> tokens() const { return tokens_; }
  std::span<const Token> output() const { return tokens().subspan(static_cast<std::size_t>(prompt_length_)); }
  std::int32_t length() const { return static_cast<std::int32_t>(tokens_.size()); }
  std::int32_t prompt_length() const { return prompt_length_; }
  std::int32_t output_length() const { return length() - prompt_length_; }
  void append(Token token) { tokens_.push_back(token); }

  // Progress: the cache holds positions 0 .. num_computed-1; `remaining` rows are missing before the next
  // token can be drawn. Exactly one missing row is what makes a running sequence a decode.
  std::int32_t num_computed() const { return num_computed_; }
  std::int32_t remaining() const { return length() - num_computed_; }
  bool is_decode() const { return state_ == SequenceState::kRunning && remaining() == 1; }
  void set_computed(std::int32_t num_computed) { num_computed_ = num_computed; }

  // Life cycle.
  SequenceState state() const { return state_; }
  FinishReason finish_reason() const { return finish_reason_; }
  bool finished() const { return state_ == SequenceState::kFinished; }
  std::int32_t num_preemptions() const { return num_preemptions_; }
  void start() { state_ = SequenceState::kRunning; }
  void restart() {
    state_ = SequenceState::kWaiting;
    num_computed_ = 0;
    ++num_preemptions_;
  }
  void finish(FinishReason reason) {
    state_ = SequenceState::kFinished;
    finish_reason_ = reason;
  }

  // Steps planned and not yet committed that contain rows of this sequence. While there are any, the device
  // may write to its blocks, so they cannot be given back.
  bool in_flight() const { return steps_in_flight_ > 0; }
  void enter_step() { ++steps_in_flight_; }
  void leave_step() { --steps_in_flight_; }

  // What it holds: a table of blocks in position order and a state slot (0: none).
  std::vector<BlockId> block_table;
  BlockId slot = 0;

 private:
  SeqId id_;
  std::uint64_t order_;
  double arrival_;
  std::int32_t prompt_length_;
  std::vector<Token> tokens_;
  Limits limits_;
  std::int32_t num_computed_ = 0;
  std::int32_t num_preemptions_ = 0;
  std::int32_t steps_in_flight_ = 0;
  SequenceState state_ = SequenceState::kWaiting;
  FinishReason finish_reason_ = FinishReason::kNone;
};

// Shared between the queues and the steps in flight: a sequence aborted in flight outlives its queue.
using SequencePtr = std::shared_ptr<Sequence>;

}  // namespace di::scheduler
