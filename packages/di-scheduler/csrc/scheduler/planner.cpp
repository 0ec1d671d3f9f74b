#include "scheduler/planner.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>

#include "scheduler/chunk.hpp"

namespace di::scheduler {

namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

// The first to lose its cache: the least urgent class, then the least invested, then the one added last.
bool worse_off(const SequencePtr& a, const SequencePtr& b) {
  const auto rank = [](const Sequence& s) { return std::tuple(-s.priority(), s.num_computed(), ~s.order()); };
  return rank(*a) < rank(*b);
}

// Decodes first, the oldest first within each kind.
void put_in_order(std::vector<Piece>& pieces) {
  const auto before = [](const Piece& a, const Piece& b) {
    return a.decode != b.decode ? a.decode : a.sequence->older_than(*b.sequence);
  };
  if (std::is_sorted(pieces.begin(), pieces.end(), before)) return;  // the usual case
  std::sort(pieces.begin(), pieces.end(), before);
}

}  // namespace

Selection Planner::select(StepKind kind) {
  Selection step;
  lacked_blocks_ = false;
  padding_ = 0;
  prefill_ends_ = 0;
  for (const SequencePtr& sequence : lifecycle_.running()) sequence->in_plan = false;
  if (kind == StepKind::kAny && config_.policy == StepPolicy::kMixed) {
    fill(kind, step);
  } else {
    fill_one_kind(kind, step);
  }
  put_in_order(step.pieces);
  return step;
}

// One kind a step, in turns while both have work. A kind that comes up empty yields to the other at once, so
// an idle scheduler never waits for a turn.
void Planner::fill_one_kind(StepKind kind, Selection& step) {
  std::array kinds{StepKind::kPrefill, StepKind::kDecode};
  if (last_kind_ == StepKind::kPrefill) std::swap(kinds[0], kinds[1]);
  for (const StepKind turn : kinds) {
    if (kind != StepKind::kAny && kind != turn) continue;
    fill(turn, step);
    if (step.pieces.empty()) continue;
    last_kind_ = turn;
    return;
  }
}

void Planner::fill(StepKind kind, Selection& step) {
  if (kind != StepKind::kPrefill) {
    // Drafts leave at least one chunk's worth of rows to prefill that shares the step, or it would starve.
    const bool shares = config_.max_draft_tokens > 0 && kind == StepKind::kAny &&
                        (has_open_prefill() || lifecycle_.waiting().next());
    drafts_.allot(lifecycle_.running(), shares ? config_.chunk_align : 0);
  }
  plan_running(kind, step);
  if (kind != StepKind::kDecode) admit_waiting(kind, std::nullopt, step);
}

void Planner::plan_running(StepKind kind, Selection& step) {
  const OrderedQueue& running = lifecycle_.running();
  std::optional<std::int32_t> entered;  // the class that the loop is in
  for (std::size_t i = 0; i < running.size();) {
    const std::int32_t priority = running[i]->priority();
    if (kind != StepKind::kDecode && entered != priority) {
      entered = priority;
      admit_waiting(kind, priority, step);
      i = first_of_class(priority);
      continue;
    }
    const SequencePtr sequence = running[i];
    const bool decode = sequence->is_decode();
    const bool wanted = kind == StepKind::kAny || decode == (kind == StepKind::kDecode);
    if (wanted && is_plannable(*sequence, config_)) {
      decode ? plan_decode(i, step) : plan_prefill(i, kind, step);
    }
    // Victims stand behind the sequence in need, or are that sequence.
    if (i < running.size() && running[i] == sequence) ++i;
  }
}

void Planner::plan_decode(std::size_t index, Selection& step) {
  const SequencePtr sequence = lifecycle_.running()[index];
  if (budget_left(step) < 1) return;
  const std::int32_t pending = sequence->pending_tokens();
  // Positions before the draft rows, wherever the token in flight leaves the sequence.
  const std::int64_t base =
      std::min<std::int64_t>(sequence->length() + std::int64_t{pending}, config_.length_limit());
  const std::int32_t planned = std::min(sequence->num_drafts, budget_left(step) - 1);
  const std::int32_t reach = pending > 0 && redistributes() ? sequence->draft_limit : planned;
  if (secure(index, base, base) < base) return;
  cache_.cover(*sequence, base);
  // Drafts take a block only while every sequence behind could still have one.
  const auto behind = static_cast<std::int64_t>(lifecycle_.running().size() - index - 1);
  const std::int64_t spare = std::max<std::int64_t>(0, cache_.blocks().num_free() - behind);
  const std::int64_t room =
      (static_cast<std::int64_t>(sequence->block_table.size()) + spare) * config_.block_size;
  const auto granted = static_cast<std::int32_t>(std::min<std::int64_t>(reach, room - base));
  cache_.cover(*sequence, base + granted);
  const std::int32_t drafts = std::min(planned, granted);
  add({sequence, pending > 0 ? sequence->length() : sequence->num_planned(), 1 + drafts, /*decode=*/true,
       /*samples=*/true, pending, granted},
      step);
}

void Planner::plan_prefill(std::size_t index, StepKind kind, Selection& step) {
  const SequencePtr sequence = lifecycle_.running()[index];
  // Decodes have priority: an older prefill leaves the rows of each decode that follows it.
  const std::int32_t promised = kind == StepKind::kAny ? rows_of_later_decodes(index) : 0;
  const std::int32_t budget = budget_left(step) - promised;
  const std::int32_t start = sequence->num_planned();
  std::int32_t rows = chunk_rows(config_, *sequence, budget, kUnlimited);
  if (rows == 0 || exceeds_context(start + rows)) return;
  const std::int64_t least = start + least_rows(config_, *sequence, rows);
  const std::int64_t covered = secure(index, least, start + rows);
  if (covered < least) return;
  if (covered < start + rows) rows = chunk_rows(config_, *sequence, budget, covered - start);
  cache_.cover(*sequence, start + rows);
  add_prefill(sequence, rows, step);
}

std::int32_t Planner::rows_of_later_decodes(std::size_t index) const {
  std::int32_t rows = 0;
  const OrderedQueue& running = lifecycle_.running();
  for (std::size_t i = index; i < running.size(); ++i) {
    const Sequence& sequence = *running[i];
    if (sequence.is_decode() && is_plannable(sequence, config_)) rows += 1 + sequence.num_drafts;
  }
  return rows;
}

// How many of `wanted` positions the sequence can have; less than `least` leaves it out of this plan. Ends:
// each round takes a sequence out of the running.
std::int64_t Planner::secure(std::size_t index, std::int64_t least, std::int64_t wanted) {
  const SequencePtr sequence = lifecycle_.running()[index];
  for (;;) {
    const std::int64_t covered = cache_.coverable(*sequence, wanted);
    if (covered >= least) return covered;
    lacked_blocks_ = true;
    if (lifecycle_.blocks_are_coming()) return 0;
    const SequencePtr victim = pick_victim(index);
    if (!victim) return 0;
    if (victim->in_step()) {
      lifecycle_.mark(victim);
      return 0;
    }
    lifecycle_.preempt(victim);
    if (victim == sequence) return 0;
  }
}

// Among those from `from` on, never the oldest of all: it is what makes everything end.
SequencePtr Planner::pick_victim(std::size_t from) const {
  SequencePtr worst;
  const OrderedQueue& running = lifecycle_.running();
  for (std::size_t i = std::max<std::size_t>(from, 1); i < running.size(); ++i) {
    if (running[i]->in_plan || running[i]->marked) continue;
    if (!worst || worse_off(running[i], worst)) worst = running[i];
  }
  return worst;
}

// Whether nobody can be admitted, whoever comes: the slots are taken, and by nobody who would have to yield.
bool Planner::is_full() const {
  const OrderedQueue& running = lifecycle_.running();
  if (cache_.slots().num_used() < config_.max_num_seqs) return false;
  return running.empty() || running.back()->priority() <= lifecycle_.waiting().most_urgent();
}

void Planner::admit_waiting(StepKind kind, std::optional<std::int32_t> below, Selection& step) {
  if (lacked_blocks_ || is_full()) return;
  while (const SequencePtr candidate = lifecycle_.waiting().next(below)) {
    // Decodes of less urgent classes, whose turn is still to come, keep their rows.
    const bool leaves_rows = kind == StepKind::kAny && below;
    const std::int32_t promised = leaves_rows ? rows_of_later_decodes(first_of_class(*below)) : 0;
    if (!admit(candidate, promised, step)) return;
  }
}

// Where running sequences of that class or less urgent ones begin.
std::size_t Planner::first_of_class(std::int32_t priority) const {
  const OrderedQueue& running = lifecycle_.running();
  const auto first = std::find_if(running.begin(), running.end(),
                                  [&](const SequencePtr& s) { return s->priority() >= priority; });
  return static_cast<std::size_t>(first - running.begin());
}

bool Planner::admit(const SequencePtr& candidate, std::int32_t promised, Selection& step) {
  if (lacked_blocks_) return false;
  const std::int32_t rows = chunk_rows(config_, *candidate, budget_left(step) - promised, kUnlimited);
  if (rows == 0 || exceeds_context(rows)) return false;
  if (!make_room(*candidate, tokens_to_admit(*candidate, rows))) return false;
  lifecycle_.waiting().admit(candidate);
  cache_.open(*candidate);
  cache_.cover(*candidate, rows);
  add_prefill(candidate, rows, step);
  lifecycle_.run(candidate);
  return true;
}

// A newcomer needs its first chunk only. One that was preempted before must fit as a whole, including the
// next token, so that it cannot give up the same work over and over.
std::int64_t Planner::tokens_to_admit(const Sequence& candidate, std::int32_t rows) {
  return candidate.num_preemptions() > 0 ? std::int64_t{candidate.length()} + 1 : rows;
}

bool Planner::fits(std::int64_t tokens, std::int64_t free_blocks, std::int64_t running,
                   std::int64_t slots) const {
  // One free block stays for each running sequence, which may need it at its next block border.
  const std::int64_t watermark = slots == 0 ? 0 : config_.watermark_blocks;
  return slots < config_.max_num_seqs && config_.blocks_for(tokens) + running + watermark <= free_blocks;
}

bool Planner::fits_now(std::int64_t tokens) const {
  return fits(tokens, cache_.blocks().num_free(), static_cast<std::int64_t>(lifecycle_.running().size()),
              cache_.slots().num_used());
}

// Running sequences of less urgent classes whose going would make room, the fewest that do, in the order of
// victims; nothing when all of them would not do, or when blocks come back anyway.
std::optional<std::vector<SequencePtr>> Planner::choose_victims(const Sequence& candidate,
                                                                std::int64_t tokens, bool planned_too) const {
  std::vector<SequencePtr> victims;
  if (fits_now(tokens)) return victims;
  if (lifecycle_.blocks_are_coming()) return std::nullopt;
  for (const SequencePtr& sequence : lifecycle_.running()) {
    const bool spared = sequence->in_plan && !planned_too;
    if (sequence->priority() > candidate.priority() && !spared) victims.push_back(sequence);
  }
  std::sort(victims.begin(), victims.end(), worse_off);
  std::int64_t free_blocks = cache_.blocks().num_free(), slots = cache_.slots().num_used();
  auto running = static_cast<std::int64_t>(lifecycle_.running().size());
  std::size_t count = 0;
  while (!fits(tokens, free_blocks, running, slots)) {
    if (count == victims.size()) return std::nullopt;
    const Sequence& victim = *victims[count++];
    free_blocks += cache_.num_exclusive(victim);
    slots -= cache_.slots().ref_count(victim.slot) == 1 ? 1 : 0;
    --running;
  }
  victims.resize(count);
  return victims;
}

// Preempts what stands in the candidate's way. Victims in flight can only be marked; it then waits for them.
bool Planner::make_room(const Sequence& candidate, std::int64_t tokens) {
  const auto victims = choose_victims(candidate, tokens, /*planned_too=*/false);
  if (!victims) return false;
  bool waits = false;
  for (const SequencePtr& victim : *victims) {
    waits = waits || victim->in_step();
    victim->in_step() ? lifecycle_.mark(victim) : lifecycle_.preempt(victim);
  }
  return !waits;
}

bool Planner::exceeds_context(std::int64_t end) const {
  return prefill_ends_ > 0 && prefill_ends_ + end > config_.max_step_context;
}

std::int32_t Planner::budget_left(const Selection& step) const {
  return config_.max_num_batched_tokens - step.num_rows - padding_;
}

void Planner::add(Piece piece, Selection& step) {
  step.num_rows += piece.q_len;
  piece.sequence->in_plan = true;
  step.pieces.push_back(std::move(piece));
}

void Planner::add_prefill(const SequencePtr& sequence, std::int32_t rows, Selection& step) {
  const std::int32_t start = sequence->num_planned();
  add({sequence, start, rows, /*decode=*/false, /*samples=*/rows == sequence->missing()}, step);
  padding_ += config_.padded(rows) - rows;
  prefill_ends_ += start + rows;
}

bool Planner::wants_prefill() const {
  if (has_open_prefill()) return true;
  const SequencePtr candidate = lifecycle_.waiting().next();
  if (!candidate) return false;
  const std::int32_t rows = chunk_rows(config_, *candidate, config_.max_num_batched_tokens, kUnlimited);
  const std::int64_t tokens = tokens_to_admit(*candidate, rows);
  return rows > 0 && choose_victims(*candidate, tokens, /*planned_too=*/true).has_value();
}

bool Planner::has_open_prefill() const {
  const OrderedQueue& running = lifecycle_.running();
  return std::any_of(running.begin(), running.end(),
                     [](const SequencePtr& s) { return !s->is_decode() && !s->marked; });
}

bool Planner::has_decodes() const {
  const OrderedQueue& running = lifecycle_.running();
  return std::any_of(running.begin(), running.end(),
                     [this](const SequencePtr& s) { return s->is_decode() && is_plannable(*s, config_); });
}

}  // namespace di::scheduler
