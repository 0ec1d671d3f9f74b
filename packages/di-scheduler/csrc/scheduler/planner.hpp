// Which rows the next step computes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/draft_planner.hpp"
#include "scheduler/lifecycle.hpp"
#include "scheduler/piece.hpp"
#include "scheduler/sequence.hpp"
#include "scheduler/sequence_cache.hpp"
#include "scheduler/types.hpp"

namespace di::scheduler {

// The rules are those of docs/interfaces.md, "Planning". What makes them end: the oldest running sequence is
// never a victim and gets rows whenever it can, so with a finite number of sequences all of them finish.
class Planner {
 public:
  Planner(const Config& config, SequenceCache& cache, Lifecycle& lifecycle)
      : config_(config), cache_(cache), lifecycle_(lifecycle), drafts_(config) {}

  // Moves sequences between the queues and takes and gives back blocks.
  Selection select(StepKind kind);

  void set_step_cost(std::optional<StepCost> cost) { drafts_.set_step_cost(std::move(cost)); }
  bool redistributes() const { return drafts_.has_step_cost(); }

  // Whether a plan of prefill, or of decodes, would have rows now.
  bool wants_prefill() const;
  bool has_decodes() const;

 private:
  bool has_open_prefill() const;
  void fill(StepKind kind, Selection& step);
  void fill_one_kind(StepKind kind, Selection& step);
  void plan_running(StepKind kind, Selection& step);
  void plan_decode(std::size_t index, Selection& step);
  void plan_prefill(std::size_t index, StepKind kind, Selection& step);
  std::int32_t rows_of_later_decodes(std::size_t index) const;
  std::int64_t secure(std::size_t index, std::int64_t least, std::int64_t wanted);
  SequencePtr pick_victim(std::size_t from) const;

  void admit_waiting(StepKind kind, std::optional<std::int32_t> below, Selection& step);
  std::size_t first_of_class(std::int32_t priority) const;
  bool admit(const SequencePtr& candidate, std::int32_t promised, Selection& step);
  bool fits(std::int64_t tokens, std::int64_t free_blocks, std::int64_t running, std::int64_t slots) const;
  bool fits_now(std::int64_t tokens) const;
  static std::int64_t tokens_to_admit(const Sequence& candidate, std::int32_t rows);
  bool is_full() const;
  std::optional<std::vector<SequencePtr>> choose_victims(const Sequence& candidate, std::int64_t tokens,
                                                         bool planned_too) const;
  bool make_room(const Sequence& candidate, std::int64_t tokens);

  bool exceeds_context(std::int64_t end) const;
  std::int32_t budget_left(const Selection& step) const;
  void add(Piece piece, Selection& step);
  void add_prefill(const SequencePtr& sequence, std::int32_t rows, Selection& step);

  const Config& config_;
  SequenceCache& cache_;
  Lifecycle& lifecycle_;
  DraftPlanner drafts_;

  // Of the plan that is being made.
  bool lacked_blocks_ = false;
  std::int32_t padding_ = 0;                // rows of the budget that alignment leaves empty
  std::int64_t prefill_ends_ = 0;           // sum of the end positions of its prefill pieces
  StepKind last_kind_ = StepKind::kDecode;  // of the previous step of one kind
};

}  // namespace di::scheduler
