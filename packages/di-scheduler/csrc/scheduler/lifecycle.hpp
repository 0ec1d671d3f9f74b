// Beginnings and ends: the one place where a sequence comes, is preempted and goes.
#pragma once

#include <cstdint>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "scheduler/ordered_queue.hpp"
#include "scheduler/sequence.hpp"
#include "scheduler/sequence_cache.hpp"
#include "scheduler/types.hpp"
#include "scheduler/waiting_queue.hpp"

namespace di::scheduler {

// Which live sequence is where. A sequence that is used by a step or a transfer in flight keeps what it holds
// until the last of them is over, whatever happens to it meanwhile.
class Lifecycle {
 public:
  Lifecycle(const Config& config, SequenceCache& cache)
      : config_(config), cache_(cache), waiting_(config.max_overtakes) {}

  WaitingQueue& waiting() { return waiting_; }
  const WaitingQueue& waiting() const { return waiting_; }
  const OrderedQueue& running() const { return running_; }
  const std::unordered_map<SeqId, SequencePtr>& live() const { return live_; }

  // The unfinished sequence of this id, else null.
  SequencePtr find(SeqId id) const;
  // The same, else the one that finished since forget_finished(), else null.
  const Sequence* find_recent(SeqId id) const;
  void forget_finished() { just_finished_.clear(); }

  // Beginnings: to the waiting queue, or without a queue of its own (then run() or nothing follows).
  void enter(const SequencePtr& sequence);
  void wait(SequencePtr sequence) { waiting_.insert(std::move(sequence)); }
  void run(SequencePtr sequence);
  // The child runs at once on the parent's cache, as far as its num_computed.
  void share(const Sequence& parent, const SequencePtr& child);
  // Takes slot and blocks for `computed` positions that come from elsewhere.
  void receive(const SequencePtr& sequence, std::int32_t computed);
  void hand_over(const SequencePtr& sequence);

  // The one path on which a sequence ends, whatever ends it.
  void end(SequencePtr sequence, FinishReason reason);

  // Takes a sequence that is not in a step back to the waiting queue, without cache (a decode-only engine
  // ends it).
  void preempt(const SequencePtr& victim);
  void mark(const SequencePtr& victim);

  // Starts a sequence again that is in no queue: its cache was not filled, or is lost.
  void restart(const SequencePtr& sequence);

  // After a sequence has left a step or a transfer: does what had to wait for that.
  void settle(const SequencePtr& sequence, bool was_in_step);

  // Copies for the next step with rows; each is in flight until finish_copy().
  std::vector<CacheCopy> take_copies();
  void finish_copy(const CacheCopy& copy);

  // Whether blocks will come back with a commit of what is in flight.
  bool blocks_are_coming() const { return num_marked_ + num_ended_in_step_ > 0; }

  // Ends what `now` has gone past, and says which.
  void expire(double now);

  // What happened since it was last taken.
  std::vector<SeqId> take_preempted() { return std::exchange(preempted_, {}); }
  std::vector<SeqId> take_expired() { return std::exchange(expired_, {}); }
  void note_expired(SeqId id) { expired_.push_back(id); }
  std::int64_t num_preemptions() const { return num_preemptions_; }
  std::int64_t num_preemptions_in_flight() const { return num_preemptions_in_flight_; }

 private:
  void unmark(Sequence& sequence);
  void release(Sequence& sequence);
  void note_preempted(const Sequence& sequence);

  const Config& config_;
  SequenceCache& cache_;
  WaitingQueue waiting_;
  OrderedQueue running_;
  std::unordered_map<SeqId, SequencePtr> live_;
  std::unordered_map<SeqId, SequencePtr> just_finished_;
  std::set<std::tuple<double, std::uint64_t, SeqId>> deadlines_;  // with the order of add()
  std::vector<CacheCopy> copies_;                                 // that no plan has yet
  std::vector<SeqId> preempted_;
  std::vector<SeqId> expired_;
  std::int64_t num_preemptions_ = 0;
  std::int64_t num_preemptions_in_flight_ = 0;  // of marked victims, at a commit
  std::int32_t num_marked_ = 0;
  std::int32_t num_ended_in_step_ = 0;  // that hold blocks
};

}  // namespace di::scheduler
