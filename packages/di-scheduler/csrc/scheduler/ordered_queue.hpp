// A queue of sequences, the oldest first.
#pragma once

#include <algorithm>
#include <deque>

#include "scheduler/sequence.hpp"

namespace di::scheduler {

// Sorted by Sequence::older_than whatever the order of insertion, so that a preempted sequence comes back to
// its place and nobody overtakes. Inserting at either end, the usual case, is O(1) moves.
class OrderedQueue {
 public:
  bool empty() const { return sequences_.empty(); }
  std::size_t size() const { return sequences_.size(); }
  const SequencePtr& operator[](std::size_t i) const { return sequences_[i]; }
  const SequencePtr& front() const { return sequences_.front(); }
  const SequencePtr& back() const { return sequences_.back(); }
  auto begin() const { return sequences_.begin(); }
  auto end() const { return sequences_.end(); }

  void insert(SequencePtr sequence) { sequences_.insert(position(*sequence), std::move(sequence)); }

  // Whether the sequence was there.
  bool erase(const Sequence& sequence) {
    const auto found = position(sequence);
    if (found == sequences_.end() || found->get() != &sequence) return false;
    sequences_.erase(found);
    return true;
  }

 private:
  std::deque<SequencePtr>::const_iterator position(const Sequence& sequence) const {
    return std::lower_bound(
        sequences_.begin(), sequences_.end(), sequence,
        [](const SequencePtr& entry, const Sequence& key) { return entry->older_than(key); });
  }

  std::deque<SequencePtr> sequences_;
};

}  // namespace di::scheduler
