// Copies of caches between engines that are under way, each with a lease.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "scheduler/sequence.hpp"
#include "scheduler/types.hpp"

namespace di::scheduler {

struct Transfer {
  SequencePtr sequence;
  double expires;
};

// A ticket is given once and never again, so what arrives late finds nothing.
class Transfers {
 public:
  Ticket begin(SequencePtr sequence, double expires) {
    const Ticket ticket = next_++;
    sequence->enter_transfer();
    leases_.emplace(expires, ticket);
    open_.emplace(ticket, Transfer{std::move(sequence), expires});
    return ticket;
  }

  // The transfer, which is over now; none when it was over before.
  std::optional<Transfer> end(Ticket ticket) {
    const auto found = open_.find(ticket);
    if (found == open_.end()) return std::nullopt;
    Transfer transfer = std::move(found->second);
    open_.erase(found);
    leases_.erase({transfer.expires, ticket});
    transfer.sequence->leave_transfer();
    return transfer;
  }

  // The ticket whose lease ends first, if it ends by `now`.
  std::optional<Ticket> expired(double now) const {
    if (leases_.empty() || leases_.begin()->first > now) return std::nullopt;
    return leases_.begin()->second;
  }

 private:
  std::map<Ticket, Transfer> open_;
  std::set<std::pair<double, Ticket>> leases_;
  Ticket next_ = 1;
};

}  // namespace di::scheduler
