#include "scheduler/lifecycle.hpp"

#include <algorithm>

namespace di::scheduler {

SequencePtr Lifecycle::find(SeqId id) const {
  const auto found = live_.find(id);
  return found == live_.end() ? nullptr : found->second;
}

const Sequence* Lifecycle::find_recent(SeqId id) const {
  for (const auto* sequences : {&live_, &just_finished_}) {
    const auto found = sequences->find(id);
    if (found != sequences->end()) return found->second.get();
  }
  return nullptr;
}

void Lifecycle::enter(const SequencePtr& sequence) {
  live_.emplace(sequence->id(), sequence);
  waiting_.enter(*sequence);
  const auto& deadline = sequence->options().deadline;
  if (deadline) deadlines_.emplace(*deadline, sequence->order(), sequence->id());
}

void Lifecycle::run(SequencePtr sequence) {
  sequence->start();
  running_.insert(std::move(sequence));
}

void Lifecycle::share(const Sequence& parent, const SequencePtr& child) {
  child->charged = true;
  WaitingQueue::charge(*child, child->prompt_length());
  copies_.push_back(cache_.share(parent, child, child->num_computed()));
  run(child);
}

void Lifecycle::receive(const SequencePtr& sequence, std::int32_t computed) {
  sequence->charged = true;
  WaitingQueue::charge(*sequence, sequence->prompt_length());
  cache_.open(*sequence);
  cache_.cover(*sequence, computed);
  sequence->receive(computed);
}

void Lifecycle::hand_over(const SequencePtr& sequence) {
  running_.erase(*sequence);
  unmark(*sequence);
  sequence->hand_over();
}

void Lifecycle::end(SequencePtr sequence, FinishReason reason) {
  waiting_.erase(*sequence);
  running_.erase(*sequence);
  waiting_.leave(*sequence);
  unmark(*sequence);
  live_.erase(sequence->id());
  std::erase(preempted_, sequence->id());  // the id may be another sequence's when the next plan tells
  const auto& deadline = sequence->options().deadline;
  if (deadline) deadlines_.erase({*deadline, sequence->order(), sequence->id()});
  sequence->finish(reason);
  if (!sequence->in_flight()) {
    release(*sequence);
  } else if (sequence->in_step() && !sequence->block_table.empty()) {
    ++num_ended_in_step_;
  }
  just_finished_[sequence->id()] = std::move(sequence);
}

void Lifecycle::preempt(const SequencePtr& victim) {
  if (config_.kind == EngineKind::kDecodeOnly) {
    end(victim, FinishReason::kPreempted);
    note_preempted(*victim);
    return;
  }
  running_.erase(*victim);
  unmark(*victim);
  restart(victim);
}

// Copies that no plan has taken are dropped with the place they were for.
void Lifecycle::release(Sequence& sequence) {
  cache_.release(sequence);
  const auto unused = std::find_if(copies_.begin(), copies_.end(),
                                   [&](const CacheCopy& copy) { return copy.child.get() == &sequence; });
  if (unused == copies_.end()) return;
  cache_.release_sources(*unused);
  copies_.erase(unused);
}

std::vector<CacheCopy> Lifecycle::take_copies() {
  for (const CacheCopy& copy : copies_) {
    // The step may have rows of the child or not: for now it leaves the child where it is.
    copy.child->set_in_flight(copy.child->num_computed(), 0);
    copy.child->enter_step();
  }
  return std::exchange(copies_, {});
}

void Lifecycle::finish_copy(const CacheCopy& copy) {
  copy.child->leave_step();
  settle(copy.child, /*was_in_step=*/true);
  cache_.release_sources(copy);
}

void Lifecycle::note_preempted(const Sequence& sequence) {
  ++num_preemptions_;
  preempted_.push_back(sequence.id());
}

void Lifecycle::restart(const SequencePtr& sequence) {
  note_preempted(*sequence);
  release(*sequence);
  sequence->restart();
  waiting_.insert(sequence);
}

void Lifecycle::mark(const SequencePtr& victim) {
  victim->marked = true;
  ++num_marked_;
}

void Lifecycle::unmark(Sequence& sequence) {
  if (std::exchange(sequence.marked, false)) --num_marked_;
}

void Lifecycle::settle(const SequencePtr& sequence, bool was_in_step) {
  if (sequence->finished()) {
    if (sequence->in_flight()) return;
    if (was_in_step && !sequence->block_table.empty()) --num_ended_in_step_;
    release(*sequence);
  } else if (sequence->marked && !sequence->in_flight()) {
    ++num_preemptions_in_flight_;
    preempt(sequence);
  }
}

void Lifecycle::expire(double now) {
  while (!deadlines_.empty() && std::get<0>(*deadlines_.begin()) <= now) {
    const SeqId id = std::get<2>(*deadlines_.begin());
    end(find(id), FinishReason::kDeadline);
    expired_.push_back(id);
  }
}

}  // namespace di::scheduler
