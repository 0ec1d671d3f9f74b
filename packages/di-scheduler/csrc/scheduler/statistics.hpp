// What happened since construction.
#pragma once

#include <algorithm>
#include <cstdint>

namespace di::scheduler {

struct Counters {
  std::int64_t aborts = 0;
  std::int64_t refusals = 0;
  std::int64_t expirations = 0;
  std::int64_t steps = 0;
  std::int64_t chunks = 0;  // planned pieces that stop short of the end of their sequence
  std::int64_t mixed_steps = 0;
  std::int64_t drafts_planned = 0;
  std::int64_t drafts_accepted = 0;
  std::int64_t tokens_committed = 0;

  // Steps from add() to the first rows, and time from arrival to them.
  std::int64_t num_first_scheduled = 0;
  std::int64_t steps_waited_sum = 0, steps_waited_max = 0;
  double wait_sum = 0.0, wait_max = 0.0;

  // From arrival to the first token.
  std::int64_t num_first_tokens = 0;
  double first_token_wait_sum = 0.0, first_token_wait_max = 0.0;

  void first_rows(std::int64_t steps_waited, double wait) {
    ++num_first_scheduled;
    steps_waited_sum += steps_waited;
    steps_waited_max = std::max(steps_waited_max, steps_waited);
    wait_sum += wait;
    wait_max = std::max(wait_max, wait);
  }

  void first_token(double wait) {
    ++num_first_tokens;
    first_token_wait_sum += wait;
    first_token_wait_max = std::max(first_token_wait_max, wait);
  }
};

}  // namespace di::scheduler
