#include "scheduler/scheduler.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "scheduler/admission.hpp"
#include "scheduler/errors.hpp"
#include "scheduler/resolve.hpp"

namespace di::scheduler {

using std::to_string;

Scheduler::Scheduler(const Config& config)
    : config_(config),
      cache_(config_),
      lifecycle_(config_, cache_),
      planner_(config_, cache_, lifecycle_),
      committer_(config_.length_limit()) {}

// `check`: what the way in asks besides. Counts refusals.
template <typename Check>
void Scheduler::check_new(SeqId id, std::span<const Token> tokens, double arrival, const Options& options,
                          Check&& check) {
  try {
    if (lifecycle_.find(id)) {
      throw AdmissionError("duplicate_id", "seq_id " + to_string(id) + " belongs to an unfinished sequence");
    }
    check_admission(config_, id, tokens, arrival, options);
    check();
  } catch (const AdmissionError&) {
    ++counters_.refusals;
    throw;
  }
}

// Life of a sequence.

void Scheduler::add(SeqId id, std::span<const Token> prompt, Limits limits, double arrival, Options options) {
  check_new(id, prompt, arrival, options, [this] { check_computes_prompts(); });
  const auto length = static_cast<std::int32_t>(prompt.size());
  const SequencePtr sequence =
      make_sequence(id, prompt, length, std::move(limits), arrival, std::move(options));
  lifecycle_.enter(sequence);
  lifecycle_.wait(sequence);
}

void Scheduler::check_computes_prompts() const {
  if (config_.kind != EngineKind::kDecodeOnly) return;
  throw AdmissionError("decode_only", "a DECODE_ONLY engine takes sequences by import_sequence only");
}

SequencePtr Scheduler::make_sequence(SeqId id, std::span<const Token> tokens, std::int32_t prompt_length,
                                     Limits limits, double arrival, Options options) {
  auto sequence = std::make_shared<Sequence>(id, next_order_++, arrival, tokens, prompt_length,
                                             std::move(limits), std::move(options));
  sequence->added_at_step = counters_.steps;
  return sequence;
}

bool Scheduler::set_ready(SeqId id) {
  const SequencePtr sequence = lifecycle_.find(id);
  if (!sequence || sequence->ready()) return false;
  sequence->set_ready();
  return true;
}

bool Scheduler::finish(SeqId id, FinishReason reason) {
  const SequencePtr sequence = lifecycle_.find(id);
  if (!sequence) return false;
  if (reason == FinishReason::kAbort) ++counters_.aborts;
  lifecycle_.end(sequence, reason);
  return true;
}

bool Scheduler::fork(SeqId parent_id, SeqId id, std::int32_t num_tokens, Limits limits, double arrival,
                     Options options) {
  const SequencePtr parent = lifecycle_.find(parent_id);
  if (!parent) throw std::out_of_range("parent_id " + to_string(parent_id) + " is no unfinished sequence");
  if (num_tokens < 1 || num_tokens > parent->length()) {
    throw std::invalid_argument("num_tokens must be 1 to " + to_string(parent->length()) +
                                ", the tokens of sequence " + to_string(parent_id) + ", got " +
                                to_string(num_tokens));
  }
  const auto tokens = parent->tokens().first(static_cast<std::size_t>(num_tokens));
  check_new(id, tokens, arrival, options, [this] { check_computes_prompts(); });
  const bool shares = can_share(*parent, options, num_tokens);
  const SequencePtr child =
      make_sequence(id, tokens, num_tokens, std::move(limits), arrival, std::move(options));
  lifecycle_.enter(child);
  if (!shares) {
    lifecycle_.wait(child);
    return false;
  }
  child->set_computed(std::min(parent->num_computed(), num_tokens - 1));
  child->set_written(parent->num_written());
  lifecycle_.share(*parent, child);
  return true;
}

bool Scheduler::can_share(const Sequence& parent, const Options& options, std::int32_t num_tokens) const {
  const std::int32_t computed = std::min(parent.num_computed(), num_tokens - 1);
  // The state can go back by as many positions as a step may have drafts, and one.
  const bool reachable = parent.num_written() - computed <= config_.max_draft_tokens + 1;
  const bool is_filled =
      parent.state() == SequenceState::kRunning || parent.state() == SequenceState::kPrompted;
  return options.ready && is_filled && !parent.in_step() && computed >= 1 && reachable &&
         cache_.can_share(computed);
}

// Hand-over.

Ticket Scheduler::begin_transfer(SeqId id, double expires) {
  const SequencePtr sequence = lifecycle_.find(id);
  if (!sequence) throw std::out_of_range("seq_id " + to_string(id) + " is no unfinished sequence");
  if (sequence->state() != SequenceState::kPrompted || sequence->in_flight()) {
    throw std::invalid_argument("sequence " + to_string(id) +
                                " must be PROMPTED and without a transfer to begin one");
  }
  return transfers_.begin(sequence, expires);
}

std::optional<Ticket> Scheduler::import_sequence(SeqId id, std::span<const Token> tokens,
                                                 std::int32_t prompt_length, Limits limits, double expires,
                                                 double arrival, Options options) {
  check_new(id, tokens, arrival, options, [&] { check_import(tokens, prompt_length, limits); });
  const auto computed = static_cast<std::int32_t>(tokens.size()) - 1;
  const auto wanted = config_.blocks_for(computed) + static_cast<std::int64_t>(lifecycle_.running().size());
  if (cache_.slots().num_used() >= config_.max_num_seqs || wanted > cache_.blocks().num_free()) {
    return std::nullopt;
  }
  options.ready = true;  // it has begun
  const SequencePtr sequence =
      make_sequence(id, tokens, prompt_length, std::move(limits), arrival, std::move(options));
  sequence->yielded_before = true;
  lifecycle_.enter(sequence);
  lifecycle_.receive(sequence, computed);
  return transfers_.begin(sequence, expires);
}

void Scheduler::check_import(std::span<const Token> tokens, std::int32_t prompt_length,
                             const Limits& limits) {
  const auto length = static_cast<std::int64_t>(tokens.size());
  if (config_.kind == EngineKind::kPrefillOnly) {
    throw AdmissionError("prefill_only", "a PREFILL_ONLY engine does not import sequences");
  }
  if (prompt_length < 1 || prompt_length >= length) {
    throw AdmissionError("invalid_prompt_len", "prompt_len must be 1 to " + to_string(length - 1) +
                                                   ", which leaves a token of output, got " +
                                                   to_string(prompt_length));
  }
  if (length - prompt_length >= limits.max_tokens) {
    throw AdmissionError("nothing_left", to_string(length - prompt_length) +
                                             " tokens of output are there, max_tokens allows " +
                                             to_string(limits.max_tokens));
  }
}

bool Scheduler::end_transfer(Ticket ticket, bool ok) {
  auto transfer = transfers_.end(ticket);
  if (!transfer) return false;
  settle_transfer(*std::move(transfer), ok, /*by_lease=*/false);
  return true;
}

void Scheduler::settle_transfer(Transfer transfer, bool ok, bool by_lease) {
  const SequencePtr& sequence = transfer.sequence;
  const bool incoming = sequence->state() == SequenceState::kReceiving;
  if (sequence->finished()) {
    lifecycle_.settle(sequence, /*was_in_step=*/false);
  } else if (incoming && ok) {
    lifecycle_.run(sequence);
  } else if (incoming && config_.kind != EngineKind::kDecodeOnly) {
    lifecycle_.restart(sequence);
  } else {
    lifecycle_.end(sequence, ok ? FinishReason::kHandedOver : FinishReason::kError);
    if (by_lease) lifecycle_.note_expired(sequence->id());
  }
}

void Scheduler::expire(double now) {
  lifecycle_.expire(now);
  while (const auto ticket = transfers_.expired(now)) {
    settle_transfer(*transfers_.end(*ticket), /*ok=*/false, /*by_lease=*/true);
  }
}

// Planning.

StepPlanPtr Scheduler::plan(double now, StepKind kind) {
  if (open_plans_.size() >= static_cast<std::size_t>(config_.max_steps_in_flight)) {
    throw StepOrderError("plan() was called with " + to_string(open_plans_.size()) +
                         " plans waiting for their commit, max_steps_in_flight allows " +
                         to_string(config_.max_steps_in_flight));
  }
  lifecycle_.forget_finished();
  expire(now);
  Selection selection = planner_.select(kind);
  count_step(selection);
  empty_plan_open_ = selection.pieces.empty();
  std::vector<CacheCopy> copies;
  if (!selection.pieces.empty()) copies = lifecycle_.take_copies();
  StepPlanPtr plan = build(selection, copies);
  enter_step(selection, now);
  if (!selection.pieces.empty())
    open_plans_.push_back({plan, std::move(selection.pieces), std::move(copies)});
  return plan;
}

StepPlanPtr Scheduler::build(const Selection& selection, std::span<const CacheCopy> copies) {
  StepPlanPtr plan = plan_pool_.take();
  plan->step = counters_.steps;
  plan->lookback = config_.lookback;
  plan->num_params = config_.num_params;
  plan->max_drafts = config_.max_draft_tokens;
  plan->length_limit = config_.length_limit();
  plan->redistributes = planner_.redistributes();
  plan->num_sources = open_plans_.empty() ? 0 : open_plans_.back().plan->sampling.size();
  plan->preempted = lifecycle_.take_preempted();
  plan->expired = lifecycle_.take_expired();
  counters_.expirations += static_cast<std::int64_t>(plan->expired.size());
  for (const Piece& piece : selection.pieces) {
    const auto width = static_cast<std::int32_t>(piece.sequence->block_table.size());
    plan->table_width = std::max(plan->table_width, width);
  }
  for (const Piece& piece : selection.pieces) {
    // Where the open plan samples this sequence.
    const std::int32_t source = piece.pending > 0 ? piece.sequence->sampling_index : -1;
    plan->add(piece, source);
  }
  for (const CacheCopy& copy : copies) plan->add_copy(copy);
  return plan;
}

void Scheduler::enter_step(const Selection& selection, double now) {
  std::int32_t num_sampling = 0;
  for (const Piece& piece : selection.pieces) {
    Sequence& sequence = *piece.sequence;
    sequence.enter_step();
    sequence.set_in_flight(piece.q_start + piece.q_len,
                           piece.decode ? piece.q_len : static_cast<std::int32_t>(piece.samples));
    if (piece.samples) sequence.sampling_index = num_sampling++;
    if (std::exchange(sequence.scheduled_before, true)) continue;
    counters_.first_rows(counters_.steps - 1 - sequence.added_at_step, now - sequence.arrival());
  }
}

void Scheduler::count_step(const Selection& selection) {
  if (selection.pieces.empty()) return;
  ++counters_.steps;
  for (const Piece& piece : selection.pieces) {
    counters_.chunks += piece.samples ? 0 : 1;
    if (piece.decode) counters_.drafts_planned += piece.q_len - 1;
  }
  // Decodes come first, so one look at either end tells.
  if (selection.pieces.front().decode && !selection.pieces.back().decode) ++counters_.mixed_steps;
}

// Committing.

CommitResult Scheduler::commit(const StepOutcome& outcome, std::optional<std::span<const bool>> failed,
                               double now) {
  if (open_plans_.empty() && !empty_plan_open_) {
    throw StepOrderError("commit() was called without a plan to commit");
  }
  check_commit(outcome, failed);
  if (open_plans_.empty()) {
    empty_plan_open_ = false;
    return {};
  }
  // Before anything is changed: what the next plan becomes.
  std::vector<Piece> dropped;
  if (open_plans_.size() > 1) dropped = resolve_plan(open_plans_[1], outcome);
  const OpenPlan open = std::move(open_plans_.front());
  open_plans_.pop_front();

  CommitResult result;
  std::span<const Token> tokens = outcome.tokens;
  std::size_t index = 0;
  for (const Piece& piece : open.pieces) {
    if (!piece.samples) {
      commit_piece(piece, outcome, index, {}, false);
      continue;
    }
    const auto count = static_cast<std::size_t>(outcome.counts[index]);
    const Committed committed =
        commit_piece(piece, outcome, index, tokens.first(count), failed && (*failed)[index]);
    result.seq_ids.push_back(piece.sequence->id());
    result.num_committed.push_back(committed.num_tokens);
    result.finish.push_back(static_cast<std::int8_t>(committed.finish));
    result.first_token_wait.push_back(take_first_token(*piece.sequence, committed.num_tokens, now));
    tokens = tokens.subspan(count);
    ++index;
  }
  for (const CacheCopy& copy : open.copies) lifecycle_.finish_copy(copy);
  for (const Piece& piece : dropped) leave_step(piece.sequence);
  return result;
}

void Scheduler::leave_step(const SequencePtr& sequence) {
  sequence->leave_step();
  lifecycle_.settle(sequence, /*was_in_step=*/true);
}

void Scheduler::check_commit(const StepOutcome& outcome, std::optional<std::span<const bool>> failed) const {
  const std::size_t num_sampling = open_plans_.empty() ? 0 : open_plans_.front().plan->sampling.size();
  check_outcome(outcome, num_sampling, config_.max_draft_tokens);
  if (!failed || failed->size() == num_sampling) return;
  throw std::invalid_argument("failed has " + to_string(failed->size()) + " entries, a step of " +
                              to_string(num_sampling) + " sampling sequences needs " +
                              to_string(num_sampling));
}

// The plan was made without knowing what this step gives; now it becomes what the device computes. Returns
// the pieces that are no longer in it.
std::vector<Piece> Scheduler::resolve_plan(OpenPlan& next, const StepOutcome& outcome) {
  std::vector<Piece> dropped;
  if (!next.plan->has_sources()) return dropped;
  const StepPlanPtr resolved = plan_pool_.take();
  const std::vector<std::int32_t> kept = resolve(*next.plan, outcome, *resolved);
  std::vector<Piece> pieces;
  auto keep = kept.begin();
  std::int32_t num_sampling = 0;
  for (std::size_t i = 0; i < next.pieces.size(); ++i) {
    if (keep == kept.end() || static_cast<std::size_t>(*keep) != i) {
      dropped.push_back(next.pieces[i]);
      continue;
    }
    Piece piece = next.pieces[i];
    const std::size_t row = pieces.size();
    piece.q_start = resolved->q_start[row];
    piece.q_len = resolved->q_len[row];
    if (piece.samples) piece.sequence->sampling_index = num_sampling++;
    if (piece.decode) piece.sequence->set_in_flight(piece.q_start + piece.q_len, piece.q_len);
    pieces.push_back(std::move(piece));
    ++keep;
  }
  next.plan = resolved;
  next.pieces = std::move(pieces);
  return dropped;
}

// What a piece leaves behind: progress, tokens, perhaps the sequence's end.
Committed Scheduler::commit_piece(const Piece& piece, const StepOutcome& outcome, std::size_t index,
                                  std::span<const Token> tokens, bool failed) {
  const SequencePtr& sequence = piece.sequence;
  if (sequence->finished()) {
    leave_step(sequence);
    return {0, sequence->finish_reason()};
  }
  sequence->set_written(piece.q_start + piece.q_len);
  if (!piece.decode) sequence->set_computed(piece.q_start + piece.q_len);
  Committed committed;
  if (piece.samples) {
    committed = commit_tokens(piece, tokens, failed);
    take_drafts(*sequence, outcome, index);
  }
  sequence->leave_step();
  if (committed.finish != FinishReason::kNone) {
    lifecycle_.end(sequence, committed.finish);
    return committed;
  }
  if (piece.samples && config_.kind == EngineKind::kPrefillOnly) lifecycle_.hand_over(sequence);
  lifecycle_.settle(sequence, /*was_in_step=*/true);
  committed.finish = sequence->finish_reason();  // a marked one of a decode-only engine ends now
  return committed;
}

Committed Scheduler::commit_tokens(const Piece& piece, std::span<const Token> tokens, bool failed) {
  if (failed) return {0, FinishReason::kError};
  Sequence& sequence = *piece.sequence;
  const Committed committed = committer_.commit(sequence, tokens, piece.decode ? piece.q_len : 1);
  // Of a decode's rows, those stand whose tokens were kept: all but the last token kept are drafts.
  if (piece.decode) sequence.set_computed(piece.q_start + committed.num_tokens);
  if (committed.num_tokens == 0) return committed;
  counters_.tokens_committed += committed.num_tokens;
  counters_.drafts_accepted += committed.num_tokens - 1;
  WaitingQueue::charge(sequence, committed.num_tokens);
  return committed;
}

void Scheduler::take_drafts(Sequence& sequence, const StepOutcome& outcome, std::size_t index) const {
  const auto drafts = draft_row(outcome, index, config_.max_draft_tokens);
  sequence.drafts.assign(drafts.begin(), drafts.end());
  std::swap(sequence.previous_rates, sequence.rates);
  sequence.rates.clear();
  append_draft_rates(outcome, index, config_.max_draft_tokens, drafts.size(), sequence.rates);
}

// How long the sequence has waited for its first token, where this commit gave it; else NaN.
double Scheduler::take_first_token(Sequence& sequence, std::int32_t num_tokens, double now) {
  if (num_tokens == 0 || std::exchange(sequence.yielded_before, true)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const double wait = now - sequence.arrival();
  counters_.first_token(wait);
  return wait;
}

}  // namespace di::scheduler
