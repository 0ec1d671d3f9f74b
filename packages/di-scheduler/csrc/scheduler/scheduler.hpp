// The scheduler: takes sequences, plans steps, commits their results.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "scheduler/arrival_queue.hpp"
#include "scheduler/commit.hpp"
#include "scheduler/planner.hpp"
#include "scheduler/sequence.hpp"
#include "scheduler/sequence_cache.hpp"
#include "scheduler/step_plan.hpp"
#include "scheduler/types.hpp"

namespace di::scheduler {

// What happened since construction.
struct Counters {
  std::int64_t preemptions = 0;
  std::int64_t aborts = 0;
  std::int64_t refusals = 0;
  std::int64_t steps = 0;
  std::int64_t chunks = 0;  // planned pieces that stop short of the end of their sequence
  std::int64_t mixed_steps = 0;
};

// Parallel arrays over the sampling sequences of the committed plan.
struct CommitResult {
  std::vector<SeqId> seq_ids;
  std::vector<std::int32_t> num_committed;
  std::vector<std::int8_t> finish;
};

// Index bookkeeping only; see di_scheduler.Scheduler for the contract of each method. Not thread-safe.
class Scheduler {
 public:
  explicit Scheduler(const Config& config);
  Scheduler(const Scheduler&) = delete;  // its parts refer to each other
  Scheduler& operator=(const Scheduler&) = delete;

  void add(SeqId id, std::span<const Token> prompt, Limits limits, double arrival);
  bool finish(SeqId id, FinishReason reason);
  std::unique_ptr<StepPlan> plan();
  CommitResult commit(std::span<const Token> tokens, std::span<const std::int32_t> counts,
                      std::optional<std::span<const bool>> failed);

  bool has_unfinished() const { return !live_.empty() || !in_flight_.empty(); }
  const Config& config() const { return config_; }
  const Counters& counters() const { return counters_; }
  const SequenceCache& cache() const { return cache_; }
  const ArrivalQueue& waiting() const { return waiting_; }
  const ArrivalQueue& running() const { return running_; }

  // The unfinished sequence of this id, else the one that finished since the last plan(), else null.
  const Sequence* find(SeqId id) const;

 private:
  void check_admission(SeqId id, std::span<const Token> prompt, double arrival) const;
  void check_results(std::span<const Token> tokens, std::span<const std::int32_t> counts,
                     std::optional<std::span<const bool>> failed) const;
  Committed commit_rows(const PlannedRows& rows, std::span<const Token> tokens, bool failed);
  void end(SequencePtr sequence, FinishReason reason);
  void count_step(const Selection& selection);

  const Config config_;
  SequenceCache cache_;
  ArrivalQueue waiting_;
  ArrivalQueue running_;
  Planner planner_;
  Committer committer_;
  std::unordered_map<SeqId, SequencePtr> live_;
  std::unordered_map<SeqId, SequencePtr> just_finished_;
  std::vector<PlannedRows> in_flight_;  // the rows of the plan that waits for its commit
  bool plan_open_ = false;
  std::uint64_t next_order_ = 0;
  Counters counters_;
};

}  // namespace di::scheduler
