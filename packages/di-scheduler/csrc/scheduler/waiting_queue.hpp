// Who is admitted next: classes by priority, users within a class by what they have had, then order of
// arrival.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "scheduler/ordered_queue.hpp"
#include "scheduler/sequence.hpp"

namespace di::scheduler {

// What one user has had and waits for within one class.
struct UserShare {
  double service = 0.0;       // tokens served, each divided by its request's weight
  std::int64_t num_live = 0;  // unfinished sequences
  OrderedQueue waiting;
};

// Fair queueing by served tokens: the least served user of the most urgent class is next. A user without
// unfinished sequences is forgotten, and starts level with the least served when coming back, so that nobody
// saves up service by staying away.
class WaitingQueue {
 public:
  explicit WaitingQueue(std::int32_t max_overtakes) : max_overtakes_(max_overtakes) {}

  // A sequence comes into being, or ends; between them its share counts it as unfinished.
  void enter(Sequence& sequence);
  void leave(Sequence& sequence);

  void insert(SequencePtr sequence);
  bool erase(const Sequence& sequence);

  // Counts tokens that the sequence's user was served.
  static void charge(Sequence& sequence, std::int32_t tokens);

  // The sequence to admit next, of a class before `below` when given; null when none can be.
  SequencePtr next(std::optional<std::int32_t> below = std::nullopt) const;

  // Takes what next() gave out of the queue, charges its prompt once and counts whom it overtakes.
  void admit(const SequencePtr& sequence);

  std::size_t size() const { return size_; }

  // The earliest arrival of a waiting sequence, ready or not.
  std::optional<double> earliest_arrival() const;

  // The most urgent class that has unfinished sequences, waiting or not.
  std::optional<std::int32_t> most_urgent() const;

  // All waiting sequences, the oldest first.
  std::vector<const Sequence*> in_order() const;

 private:
  using Class = std::unordered_map<std::int64_t, UserShare>;  // by user

  SequencePtr candidate(const UserShare& share) const;

  std::int32_t max_overtakes_;
  std::map<std::int32_t, Class> classes_;
  std::size_t size_ = 0;
};

}  // namespace di::scheduler
