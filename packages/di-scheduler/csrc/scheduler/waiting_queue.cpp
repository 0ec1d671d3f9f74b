#include "scheduler/waiting_queue.hpp"

#include <algorithm>
#include <utility>

namespace di::scheduler {

void WaitingQueue::enter(Sequence& sequence) {
  Class& users = classes_[sequence.priority()];
  const auto [found, is_new] = users.try_emplace(sequence.options().user);
  UserShare& share = found->second;
  if (is_new) {
    std::optional<double> least;
    for (const auto& [user, other] : users) {
      if (&other != &share && (!least || other.service < *least)) least = other.service;
    }
    share.service = least.value_or(0.0);
  }
  ++share.num_live;
  sequence.share = &share;
}

void WaitingQueue::leave(Sequence& sequence) {
  if (--sequence.share->num_live == 0) {
    const auto users = classes_.find(sequence.priority());
    users->second.erase(sequence.options().user);
    if (users->second.empty()) classes_.erase(users);
  }
  sequence.share = nullptr;
}

void WaitingQueue::insert(SequencePtr sequence) {
  UserShare& share = *sequence->share;
  share.waiting.insert(std::move(sequence));
  ++size_;
}

bool WaitingQueue::erase(const Sequence& sequence) {
  const bool found = sequence.share->waiting.erase(sequence);
  if (found) --size_;
  return found;
}

void WaitingQueue::charge(Sequence& sequence, std::int32_t tokens) {
  sequence.share->service += tokens / sequence.options().weight;
}

SequencePtr WaitingQueue::next(std::optional<std::int32_t> below) const {
  for (const auto& [priority, users] : classes_) {
    if (below && priority >= *below) break;
    SequencePtr best;
    for (const auto& [user, share] : users) {
      SequencePtr sequence = candidate(share);
      if (!sequence) continue;
      const bool better = !best || share.service < best->share->service ||
                          (share.service == best->share->service && sequence->older_than(*best));
      if (better) best = std::move(sequence);
    }
    if (best) return best;
  }
  return nullptr;
}

SequencePtr WaitingQueue::candidate(const UserShare& share) const {
  for (const SequencePtr& sequence : share.waiting) {
    if (sequence->ready()) return sequence;
    if (sequence->overtaken >= max_overtakes_) break;
  }
  return nullptr;
}

void WaitingQueue::admit(const SequencePtr& sequence) {
  for (const SequencePtr& passed : sequence->share->waiting) {
    if (passed == sequence) break;
    ++passed->overtaken;
  }
  erase(*sequence);
  if (!std::exchange(sequence->charged, true)) charge(*sequence, sequence->prompt_length());
}

std::optional<double> WaitingQueue::earliest_arrival() const {
  std::optional<double> earliest;
  for (const auto& [priority, users] : classes_) {
    for (const auto& [user, share] : users) {
      for (const SequencePtr& sequence : share.waiting) {
        earliest = std::min(earliest.value_or(sequence->arrival()), sequence->arrival());
      }
    }
  }
  return earliest;
}

std::optional<std::int32_t> WaitingQueue::most_urgent() const {
  if (classes_.empty()) return std::nullopt;
  return classes_.begin()->first;
}

std::vector<const Sequence*> WaitingQueue::in_order() const {
  std::vector<const Sequence*> sequences;
  for (const auto& [priority, users] : classes_) {
    for (const auto& [user, share] : users) {
      for (const SequencePtr& sequence : share.waiting) sequences.push_back(sequence.get());
    }
  }
  std::sort(sequences.begin(), sequences.end(),
            [](const Sequence* a, const Sequence* b) { return a->older_than(*b); });
  return sequences;
}

}  // namespace di::scheduler
