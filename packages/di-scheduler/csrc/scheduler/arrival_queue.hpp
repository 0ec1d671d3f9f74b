// A queue of sequences in the order in which they were added to the scheduler.
#pragma once

#include <algorithm>
#include <deque>

#include "scheduler/sequence.hpp"

namespace di::scheduler {

// Sorted by Sequence::order() whatever the order of insertion, so that a preempted sequence comes back to its
// place and nobody overtakes. Inserting at either end, the usual case, is O(1) moves.
class ArrivalQueue {
 public:
  bool empty() const { return sequences_.empty(); }
  std::size_t size() const { return sequences_.size(); }
  const SequencePtr& operator[](std::size_t i) const { return sequences_[i]; }
  const SequencePtr& front() const { return sequences_.front(); }  // the oldest
  const SequencePtr& back() const { return sequences_.back(); }    // the latest
  auto begin() const { return sequences_.begin(); }
  auto end() const { return sequences_.end(); }

  void insert(SequencePtr sequence) { sequences_.insert(position(sequence->order()), std::move(sequence)); }

  void erase(const Sequence& sequence) {
    const auto found = position(sequence.order());
    if (found != sequences_.end() && found->get() == &sequence) sequences_.erase(found);
  }

 private:
  std::deque<SequencePtr>::const_iterator position(std::uint64_t order) const {
    return std::lower_bound(sequences_.begin(), sequences_.end(), order,
                            [](const SequencePtr& entry, std::uint64_t key) { return entry->order() < key; });
  }

  std::deque<SequencePtr> sequences_;
};

}  // namespace di::scheduler
