#include "scheduler/scheduler.hpp"

#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "scheduler/errors.hpp"

namespace di::scheduler {

using std::to_string;

Scheduler::Scheduler(const Config& config)
    : config_(config),
      cache_(config_),
      planner_(config_, cache_, waiting_, running_),
      committer_(config_.length_limit()) {}

void Scheduler::add(SeqId id, std::span<const Token> prompt, Limits limits, double arrival) {
  try {
    check_admission(id, prompt, arrival);
  } catch (const AdmissionError&) {
    ++counters_.refusals;
    throw;
  }
  auto sequence = std::make_shared<Sequence>(id, next_order_++, arrival, prompt, std::move(limits));
  live_.emplace(id, sequence);
  waiting_.insert(std::move(sequence));
}

void Scheduler::check_admission(SeqId id, std::span<const Token> prompt, double arrival) const {
  const auto length = static_cast<std::int64_t>(prompt.size());
  if (id < 0) throw AdmissionError("invalid_id", "seq_id must be at least 0, got " + to_string(id));
  if (live_.contains(id)) {
    throw AdmissionError("duplicate_id", "seq_id " + to_string(id) + " belongs to an unfinished sequence");
  }
  if (!std::isfinite(arrival)) {
    throw AdmissionError("invalid_arrival", "arrival must be a finite time, got " + to_string(arrival));
  }
  if (prompt.empty()) throw AdmissionError("empty_prompt", "prompt must have at least 1 token, got 0");
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] >= 0) continue;
    throw AdmissionError(
        "invalid_token",
        "prompt[" + to_string(i) + "] must be a token id of at least 0, got " + to_string(prompt[i]));
  }
  // One token must be left to generate.
  if (length >= config_.max_model_len) {
    throw AdmissionError("prompt_too_long", "prompt has " + to_string(length) + " tokens, max_model_len " +
                                                to_string(config_.max_model_len) + " allows at most " +
                                                to_string(config_.max_model_len - 1));
  }
  if (length >= config_.pool_tokens()) {
    throw AdmissionError("pool_too_small", "prompt has " + to_string(length) + " tokens, the pool of " +
                                               to_string(config_.num_blocks - 1) + " blocks of " +
                                               to_string(config_.block_size) + " tokens allows at most " +
                                               to_string(config_.pool_tokens() - 1));
  }
}

bool Scheduler::finish(SeqId id, FinishReason reason) {
  const auto found = live_.find(id);
  if (found == live_.end()) return false;
  if (reason == FinishReason::kAbort) ++counters_.aborts;
  end(found->second, reason);
  return true;
}

// The one path on which a sequence ends, whatever ends it.
void Scheduler::end(SequencePtr sequence, FinishReason reason) {
  waiting_.erase(*sequence);
  running_.erase(*sequence);
  live_.erase(sequence->id());
  sequence->finish(reason);
  if (!sequence->in_flight()) cache_.release(*sequence);  // otherwise at the commit
  just_finished_[sequence->id()] = std::move(sequence);
}

std::unique_ptr<StepPlan> Scheduler::plan() {
  if (!in_flight_.empty()) throw StepOrderError("plan() was called before the last plan was committed");
  just_finished_.clear();
  Selection selection = planner_.select();
  count_step(selection);
  auto plan = std::make_unique<StepPlan>(selection, config_.lookback, counters_.steps);
  for (const PlannedRows& rows : selection.rows) rows.sequence->enter_step();
  in_flight_ = std::move(selection.rows);
  plan_open_ = true;
  return plan;
}

void Scheduler::count_step(const Selection& selection) {
  counters_.preemptions += static_cast<std::int64_t>(selection.preempted.size());
  if (selection.rows.empty()) return;
  ++counters_.steps;
  for (const PlannedRows& rows : selection.rows) counters_.chunks += rows.samples ? 0 : 1;
  // Decode rows come first, so one look at either end tells.
  if (selection.rows.front().decode && !selection.rows.back().decode) ++counters_.mixed_steps;
}

CommitResult Scheduler::commit(std::span<const Token> tokens, std::span<const std::int32_t> counts,
                               std::optional<std::span<const bool>> failed) {
  if (!plan_open_) throw StepOrderError("commit() was called without a plan to commit");
  check_results(tokens, counts, failed);
  const std::vector<PlannedRows> planned = std::exchange(in_flight_, {});
  plan_open_ = false;

  CommitResult result;
  std::size_t index = 0;
  for (const PlannedRows& rows : planned) {
    rows.sequence->leave_step();
    if (!rows.samples) {
      commit_rows(rows, {}, false);
      continue;
    }
    const auto count = static_cast<std::size_t>(counts[index]);
    const Committed committed = commit_rows(rows, tokens.first(count), failed && (*failed)[index]);
    tokens = tokens.subspan(count);
    result.seq_ids.push_back(rows.sequence->id());
    result.num_committed.push_back(committed.num_tokens);
    result.finish.push_back(static_cast<std::int8_t>(committed.finish));
    ++index;
  }
  return result;
}

void Scheduler::check_results(std::span<const Token> tokens, std::span<const std::int32_t> counts,
                              std::optional<std::span<const bool>> failed) const {
  std::size_t num_sampling = 0;
  for (const PlannedRows& rows : in_flight_) num_sampling += rows.samples ? 1 : 0;
  if (counts.size() != num_sampling) {
    throw std::invalid_argument("counts has " + to_string(counts.size()) + " entries, the plan samples " +
                                to_string(num_sampling) + " sequences");
  }
  if (failed && failed->size() != num_sampling) {
    throw std::invalid_argument("failed has " + to_string(failed->size()) + " entries, the plan samples " +
                                to_string(num_sampling) + " sequences");
  }
  std::int64_t total = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] < 0) {
      throw std::invalid_argument("counts[" + to_string(i) + "] must be at least 0, got " +
                                  to_string(counts[i]));
    }
    total += counts[i];
  }
  if (total != static_cast<std::int64_t>(tokens.size())) {
    throw std::invalid_argument("counts add up to " + to_string(total) + ", tokens has " +
                                to_string(tokens.size()) + " entries");
  }
}

Committed Scheduler::commit_rows(const PlannedRows& rows, std::span<const Token> tokens, bool failed) {
  Sequence& sequence = *rows.sequence;
  if (sequence.finished()) {  // ended in flight: the device is done with its blocks only now
    cache_.release(sequence);
    return {0, sequence.finish_reason()};
  }
  sequence.set_computed(rows.q_start + rows.q_len);
  if (!rows.samples) return {};
  const Committed committed =
      failed ? Committed{0, FinishReason::kError} : committer_.commit(sequence, tokens);
  if (committed.finish != FinishReason::kNone) end(rows.sequence, committed.finish);
  return committed;
}

const Sequence* Scheduler::find(SeqId id) const {
  for (const auto* sequences : {&live_, &just_finished_}) {
    const auto found = sequences->find(id);
    if (found != sequences->end()) return found->second.get();
  }
  return nullptr;
}

}  // namespace di::scheduler
