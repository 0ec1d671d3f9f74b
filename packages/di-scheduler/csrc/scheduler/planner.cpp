#include "scheduler/planner.hpp"

#include <algorithm>

namespace di::scheduler {

namespace {

void add_rows(Selection& step, const SequencePtr& sequence, std::int32_t rows, bool decode) {
  step.rows.push_back({sequence, sequence->num_computed(), rows, decode, rows == sequence->remaining()});
  step.num_rows += rows;
}

}  // namespace

Selection Planner::select() {
  Selection step;
  if (config_.policy == StepPolicy::kMixed) {
    select_kind(Kind::kAny, step);
    std::stable_partition(step.rows.begin(), step.rows.end(), [](const PlannedRows& r) { return r.decode; });
    return step;
  }
  // One kind a step, in turns while both have work. A kind that comes up empty yields to the other at once,
  // so an idle scheduler never waits for a turn.
  const Kind first = last_kind_ == Kind::kPrefill ? Kind::kDecode : Kind::kPrefill;
  const Kind second = last_kind_;
  for (const Kind kind : {first, second}) {
    select_kind(kind, step);
    if (step.rows.empty()) continue;
    last_kind_ = kind;
    break;
  }
  return step;
}

void Planner::select_kind(Kind kind, Selection& step) {
  continue_running(kind, step);
  // Blocks that a preemption has just freed belong to those already running.
  if (kind != Kind::kDecode && step.preempted.empty()) admit_waiting(step);
}

void Planner::continue_running(Kind kind, Selection& step) {
  // In arrival order, so that a victim (always the latest) is never a sequence that has its rows already.
  for (std::size_t i = 0; i < running_.size(); ++i) {
    const SequencePtr sequence = running_[i];
    const bool decode = sequence->is_decode();
    if (kind == (decode ? Kind::kPrefill : Kind::kDecode)) continue;
    std::int32_t rows = 1;
    if (!decode) {
      // Decode rows have priority: an older prefill leaves one row for each decode that follows it.
      const std::int32_t promised = kind == Kind::kAny ? decodes_after(i) : 0;
      rows = chunk_rows(*sequence, config_.max_num_batched_tokens - step.num_rows - promised);
      if (rows <= 0) continue;
    }
    rows = reserve(sequence, rows, step);
    if (rows > 0) add_rows(step, sequence, rows, decode);
  }
}

void Planner::admit_waiting(Selection& step) {
  while (!waiting_.empty() && cache_.slots().num_used() < config_.max_num_seqs) {
    const SequencePtr sequence = waiting_.front();
    const std::int32_t rows = chunk_rows(*sequence, config_.max_num_batched_tokens - step.num_rows);
    if (rows <= 0 || !may_admit(*sequence, rows)) return;
    waiting_.erase(*sequence);
    cache_.open(*sequence);
    cache_.grow(*sequence, rows);
    add_rows(step, sequence, rows, /*decode=*/false);
    sequence->start();
    running_.insert(sequence);
  }
}

std::int32_t Planner::decodes_after(std::size_t index) const {
  return static_cast<std::int32_t>(std::count_if(running_.begin() + static_cast<std::ptrdiff_t>(index) + 1,
                                                 running_.end(),
                                                 [](const SequencePtr& s) { return s->is_decode(); }));
}

std::int32_t Planner::chunk_rows(const Sequence& sequence, std::int32_t budget) const {
  return std::min({sequence.remaining(), config_.max_chunk_tokens, budget});
}

std::int32_t Planner::reserve(const SequencePtr& sequence, std::int32_t rows, Selection& step) {
  // Ends: each round removes a running sequence, and one that runs alone fits the pool
  // (Config::length_limit).
  for (;;) {
    const std::int32_t granted = cache_.grow(*sequence, rows);
    if (granted > 0) return granted;
    const SequencePtr victim = running_.back();
    preempt(victim, step);
    if (victim == sequence) return 0;
  }
}

void Planner::preempt(const SequencePtr& victim, Selection& step) {
  running_.erase(*victim);
  cache_.release(*victim);
  victim->restart();
  waiting_.insert(victim);
  step.preempted.push_back(victim->id());
}

bool Planner::may_admit(const Sequence& sequence, std::int32_t rows) const {
  // A newcomer needs its first chunk only. One that was preempted before must fit as a whole, including the
  // next token, so that it cannot give up the same work over and over.
  const std::int32_t tokens = sequence.num_preemptions() > 0 ? sequence.length() + 1 : rows;
  // One free block stays for each running sequence, which may need it at its next block border.
  const auto headroom = static_cast<std::int64_t>(running_.size());
  return cache_.blocks().can_allocate(config_.blocks_for(tokens) + headroom) == AllocStatus::kOk;
}

}  // namespace di::scheduler
