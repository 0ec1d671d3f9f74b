// The one place that decides which tokens a sequence keeps and when it ends by itself.
#pragma once

#include <cstdint>
#include <span>

#include "scheduler/sequence.hpp"
#include "scheduler/types.hpp"

namespace di::scheduler {

struct Committed {
  std::int32_t num_tokens = 0;  // kept, from the front of what was offered
  FinishReason finish = FinishReason::kNone;
};

// Appends tokens one at a time until a stop rule holds; what follows a stop is dropped. After each token:
//   1. STOP or STOP_TOKEN: an end-of-sequence id (unless ignored) or a stop id, which at least min_tokens
//      tokens precede;
//   2. LENGTH: max_tokens are generated, or there are length_limit tokens in all.
class Committer {
 public:
  explicit Committer(std::int32_t length_limit) : length_limit_(length_limit) {}

  // An offer that no healthy step makes (no token, more than `most`, a negative one) keeps nothing and ends
  // the sequence with ERROR.
  Committed commit(Sequence& sequence, std::span<const Token> tokens, std::int32_t most) const;

 private:
  FinishReason check_stop(const Sequence& sequence) const;

  std::int32_t length_limit_;
};

}  // namespace di::scheduler
