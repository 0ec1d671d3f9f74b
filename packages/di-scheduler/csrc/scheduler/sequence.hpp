// One request inside the scheduler.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "scheduler/types.hpp"

namespace di::scheduler {

enum class SequenceState : std::int8_t {
  kWaiting = 0,
  kRunning = 1,
  kFinished = 2,
  kPrompted = 3,
  kReceiving = 4,
};

struct UserShare;

// Tokens, progress and life-cycle state of one request. A sequence never changes a pool: SequenceCache fills
// and empties its block table and slot.
class Sequence {
 public:
  Sequence(SeqId id, std::uint64_t order, double arrival, std::span<const Token> tokens,
           std::int32_t prompt_length, Limits limits, Options options)
      : id_(id),
        order_(order),
        arrival_(arrival),
        prompt_length_(prompt_length),
        tokens_(tokens.begin(), tokens.end()),
        limits_(std::move(limits)),
        options_(std::move(options)) {}

  SeqId id() const { return id_; }
  std::uint64_t order() const { return order_; }  // of add(): unique
  double arrival() const { return arrival_; }     // as the caller gave it
  std::int32_t priority() const { return options_.priority; }
  const Limits& limits() const { return limits_; }
  const Options& options() const { return options_; }

  // Older: served first, and preempted last.
  bool older_than(const Sequence& other) const {
    return std::pair(priority(), order_) < std::pair(other.priority(), other.order_);
  }

  // Committed tokens only: the prompt, then what was generated.
  std::span<const Token> tokens() const { return tokens_; }
  std::span<const Token> output() const { return tokens().subspan(static_cast<std::size_t>(prompt_length_)); }
  std::int32_t length() const { return static_cast<std::int32_t>(tokens_.size()); }
  std::int32_t prompt_length() const { return prompt_length_; }
  std::int32_t output_length() const { return length() - prompt_length_; }
  void append(Token token) { tokens_.push_back(token); }

  // Progress. The cache holds positions 0 .. num_computed-1; open plans take prefill to num_planned.
  std::int32_t num_computed() const { return num_computed_; }
  std::int32_t num_planned() const { return steps_in_flight_ > 0 ? num_planned_ : num_computed_; }
  void set_computed(std::int32_t num_computed) { num_computed_ = num_computed; }

  // Positions below this have been written to, rejected drafts too: how far back its state can go depends on
  // it.
  std::int32_t num_written() const { return num_written_; }
  void set_written(std::int32_t end) { num_written_ = std::max(num_written_, end); }

  // The most tokens that the open plan may yield; 0 when it yields none. While there are any, the next row's
  // position and token are not known.
  std::int32_t pending_tokens() const { return steps_in_flight_ > 0 ? pending_tokens_ : 0; }

  // Rows that are missing before the next token can be drawn. Exactly one missing row, or a token in flight,
  // is what makes a running sequence a decode.
  std::int32_t missing() const { return length() - num_planned(); }
  bool is_decode() const {
    return state_ == SequenceState::kRunning && (pending_tokens() > 0 || missing() == 1);
  }

  // Life cycle.
  SequenceState state() const { return state_; }
  FinishReason finish_reason() const { return finish_reason_; }
  bool finished() const { return state_ == SequenceState::kFinished; }
  bool ready() const { return options_.ready; }
  void set_ready() { options_.ready = true; }
  std::int32_t num_preemptions() const { return num_preemptions_; }
  void start() { state_ = SequenceState::kRunning; }
  void receive(std::int32_t num_computed) {
    state_ = SequenceState::kReceiving;
    num_computed_ = num_computed;
    num_written_ = num_computed;
  }
  void hand_over() { state_ = SequenceState::kPrompted; }
  void restart() {
    state_ = SequenceState::kWaiting;
    num_computed_ = 0;
    num_written_ = 0;
    ++num_preemptions_;
    drafts.clear();
    rates.clear();
    previous_rates.clear();
  }
  void finish(FinishReason reason) {
    state_ = SequenceState::kFinished;
    finish_reason_ = reason;
  }

  // Steps planned and not yet committed, and transfers not yet ended, that use what this sequence holds.
  // While there are any, its blocks cannot be given back.
  bool in_flight() const { return steps_in_flight_ + transfers_ > 0; }
  bool in_step() const { return steps_in_flight_ > 0; }
  void enter_step() { ++steps_in_flight_; }
  void leave_step() { --steps_in_flight_; }
  void enter_transfer() { ++transfers_; }
  void leave_transfer() { --transfers_; }

  // Positions below `planned` are computed once the open plans are; `pending` tokens at most come with them.
  void set_in_flight(std::int32_t planned, std::int32_t pending) {
    num_planned_ = planned;
    pending_tokens_ = pending;
  }

  // What it holds: a table of blocks in position order and a state slot (0: none).
  std::vector<BlockId> block_table;
  BlockId slot = 0;

  // Proposals that follow the last token, and the chance that each is reached and accepted, by this round of
  // drafting and by the round before.
  std::vector<Token> drafts;
  std::vector<float> rates;
  std::vector<float> previous_rates;

  // Of the plan that is being made: whether it has rows of this sequence, and how many drafts it gets.
  bool in_plan = false;
  std::int32_t draft_limit = 0;
  std::int32_t num_drafts = 0;

  // Which sampling sequence it is in the latest open plan that samples it.
  std::int32_t sampling_index = 0;

  // To be preempted at the commit that ends its flight.
  bool marked = false;

  // Its user's share of its class; whether its prompt is paid for; how many were admitted past it unready.
  UserShare* share = nullptr;
  bool charged = false;
  std::int32_t overtaken = 0;

  // For statistics: the step counter at add(), and whether it has had rows and a first token.
  std::int64_t added_at_step = 0;
  bool scheduled_before = false;
  bool yielded_before = false;

 private:
  SeqId id_;
  std::uint64_t order_;
  double arrival_;
  std::int32_t prompt_length_;
  std::vector<Token> tokens_;
  Limits limits_;
  Options options_;
  std::int32_t num_computed_ = 0;
  std::int32_t num_written_ = 0;
  std::int32_t num_planned_ = 0;
  std::int32_t pending_tokens_ = 0;
  std::int32_t num_preemptions_ = 0;
  std::int32_t steps_in_flight_ = 0;
  std::int32_t transfers_ = 0;
  SequenceState state_ = SequenceState::kWaiting;
  FinishReason finish_reason_ = FinishReason::kNone;
};

// Shared between the queues and the steps in flight: a sequence aborted in flight outlives its queue.
using SequencePtr = std::shared_ptr<Sequence>;

}  // namespace di::scheduler
