// The scheduler: takes sequences, plans steps, commits their results.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "scheduler/commit.hpp"
#include "scheduler/lifecycle.hpp"
#include "scheduler/planner.hpp"
#include "scheduler/sequence.hpp"
#include "scheduler/sequence_cache.hpp"
#include "scheduler/statistics.hpp"
#include "scheduler/step_plan.hpp"
#include "scheduler/transfers.hpp"
#include "scheduler/types.hpp"

namespace di::scheduler {

// Parallel arrays over the sampling sequences of the committed plan.
struct CommitResult {
  std::vector<SeqId> seq_ids;
  std::vector<std::int32_t> num_committed;
  std::vector<std::int8_t> finish;
  std::vector<double> first_token_wait;
};

// Index bookkeeping only; docs/interfaces.md is the contract of each method. Not thread-safe.
class Scheduler {
 public:
  explicit Scheduler(const Config& config);
  Scheduler(const Scheduler&) = delete;  // its parts refer to each other
  Scheduler& operator=(const Scheduler&) = delete;

  // The life of a sequence. fork() throws std::out_of_range for an unknown parent.
  void add(SeqId id, std::span<const Token> prompt, Limits limits, double arrival, Options options);
  bool set_ready(SeqId id);
  bool finish(SeqId id, FinishReason reason);
  bool fork(SeqId parent_id, SeqId id, std::int32_t num_tokens, Limits limits, double arrival,
            Options options);

  // Steps.
  StepPlanPtr plan(double now, StepKind kind);
  CommitResult commit(const StepOutcome& outcome, std::optional<std::span<const bool>> failed, double now);

  // Hand-over between engines. begin_transfer() throws std::out_of_range for an unknown sequence.
  Ticket begin_transfer(SeqId id, double expires);
  std::optional<Ticket> import_sequence(SeqId id, std::span<const Token> tokens, std::int32_t prompt_length,
                                        Limits limits, double expires, double arrival, Options options);
  bool end_transfer(Ticket ticket, bool ok);

  void set_step_cost(std::optional<StepCost> cost) { planner_.set_step_cost(std::move(cost)); }

  bool wants_prefill() const { return planner_.wants_prefill(); }
  bool has_decodes() const { return planner_.has_decodes(); }
  bool has_unfinished() const { return !lifecycle_.live().empty() || !open_plans_.empty(); }
  std::size_t num_open_plans() const { return open_plans_.size(); }
  const Config& config() const { return config_; }
  const Counters& counters() const { return counters_; }
  const SequenceCache& cache() const { return cache_; }
  const Lifecycle& lifecycle() const { return lifecycle_; }
  StepPlanPool& plan_pool() { return plan_pool_; }

  // The unfinished sequence of this id, else the one that finished since the last plan(), else null.
  const Sequence* find(SeqId id) const { return lifecycle_.find_recent(id); }

 private:
  // A plan with rows that waits for its commit.
  struct OpenPlan {
    StepPlanPtr plan;
    std::vector<Piece> pieces;
    std::vector<CacheCopy> copies;
  };

  SequencePtr make_sequence(SeqId id, std::span<const Token> tokens, std::int32_t prompt_length,
                            Limits limits, double arrival, Options options);
  template <typename Check>
  void check_new(SeqId id, std::span<const Token> tokens, double arrival, const Options& options,
                 Check&& check);
  void check_computes_prompts() const;
  void check_import(std::span<const Token> tokens, std::int32_t prompt_length, const Limits& limits);
  bool can_share(const Sequence& parent, const Options& options, std::int32_t num_tokens) const;

  void expire(double now);
  void settle_transfer(Transfer transfer, bool ok, bool by_lease);
  StepPlanPtr build(const Selection& selection, std::span<const CacheCopy> copies);
  void enter_step(const Selection& selection, double now);
  void count_step(const Selection& selection);

  void check_commit(const StepOutcome& outcome, std::optional<std::span<const bool>> failed) const;
  std::vector<Piece> resolve_plan(OpenPlan& next, const StepOutcome& outcome);
  Committed commit_piece(const Piece& piece, const StepOutcome& outcome, std::size_t index,
                         std::span<const Token> tokens, bool failed);
  Committed commit_tokens(const Piece& piece, std::span<const Token> tokens, bool failed);
  void take_drafts(Sequence& sequence, const StepOutcome& outcome, std::size_t index) const;
  double take_first_token(Sequence& sequence, std::int32_t num_tokens, double now);
  void leave_step(const SequencePtr& sequence);

  const Config config_;
  SequenceCache cache_;
  Lifecycle lifecycle_;
  Planner planner_;
  Committer committer_;
  Transfers transfers_;
  StepPlanPool plan_pool_;
  std::deque<OpenPlan> open_plans_;  // the oldest first; that one is resolved
  bool empty_plan_open_ = false;
  std::uint64_t next_order_ = 0;
  Counters counters_;
};

}  // namespace di::scheduler
