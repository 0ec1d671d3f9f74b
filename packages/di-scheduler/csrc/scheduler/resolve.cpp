#include "scheduler/resolve.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "scheduler/speculation.hpp"

namespace di::scheduler {

using std::to_string;

namespace {

// A sequence of the plan with what has become known of it.
struct Known {
  std::int32_t index;  // in the plan
  std::span<const Token> tokens, drafts;
  std::int32_t num_drafts;  // that it will verify
};

class Resolver {
 public:
  Resolver(const StepPlan& from, const StepOutcome& outcome, StepPlan& to)
      : from_(from), outcome_(outcome), to_(to), offsets_(outcome.counts.size() + 1, 0) {
    std::partial_sum(outcome.counts.begin(), outcome.counts.end(), offsets_.begin() + 1);
  }

  std::vector<std::int32_t> run() {
    copy_header();
    std::vector<Known> kept;
    for (std::size_t i = 0; i < from_.num_seqs(); ++i) {
      const auto index = static_cast<std::int32_t>(i);
      if (from_.source[i] < 0) {
        kept.push_back({index, {}, {}, 0});
      } else if (lives(i)) {
        kept.push_back(know(index));
      }
    }
    if (from_.redistributes) distribute(kept);
    std::vector<std::int32_t> indices;
    for (const Known& known : kept) {
      add(known);
      indices.push_back(known.index);
    }
    return indices;
  }

 private:
  std::span<const Token> tokens_of(std::int32_t source) const {
    const auto s = static_cast<std::size_t>(source);
    return outcome_.tokens.subspan(static_cast<std::size_t>(offsets_[s]),
                                   static_cast<std::size_t>(outcome_.counts[s]));
  }

  // Whether the sequence can go on: it has tokens that commit will take, and its next row has a place.
  bool lives(std::size_t i) const {
    const auto tokens = tokens_of(from_.source[i]);
    const auto count = static_cast<std::int32_t>(tokens.size());
    const bool valid = count > 0 && count <= from_.pending[i] &&
                       std::none_of(tokens.begin(), tokens.end(), [](Token t) { return t < 0; });
    return valid && from_.q_start[i] + count - 1 < from_.length_limit;
  }

  Known know(std::int32_t index) const {
    const auto i = static_cast<std::size_t>(index);
    const std::int32_t source = from_.source[i];
    const auto drafts = draft_row(outcome_, static_cast<std::size_t>(source), from_.max_drafts);
    const auto available = static_cast<std::int32_t>(drafts.size());
    return {index, tokens_of(source), drafts, std::min(from_.q_len[i] - 1, available)};
  }

  // The draft rows planned for pieces with source go to the best of what has been proposed meanwhile.
  void distribute(std::vector<Known>& kept) const {
    std::vector<float> rates;
    std::vector<std::int32_t> starts{0};
    std::vector<Known*> known;
    for (Known& k : kept) {
      const auto i = static_cast<std::size_t>(k.index);
      if (from_.source[i] < 0) continue;
      const std::size_t count = std::min(k.drafts.size(), static_cast<std::size_t>(from_.draft_limit[i]));
      append_draft_rates(outcome_, static_cast<std::size_t>(from_.source[i]), from_.max_drafts, count, rates);
      starts.push_back(static_cast<std::int32_t>(rates.size()));
      known.push_back(&k);
    }
    std::int32_t total = 0;
    for (std::size_t i = 0; i < from_.num_seqs(); ++i) {
      if (from_.source[i] >= 0) total += from_.q_len[i] - 1;
    }
    std::vector<std::int32_t> taken(known.size());
    distribute_drafts(rates, starts, std::min(total, starts.back()), taken);
    for (std::size_t i = 0; i < known.size(); ++i) known[i]->num_drafts = taken[i];
  }

  void copy_header() {
    to_.step = from_.step;
    to_.table_width = from_.table_width;
    to_.lookback = from_.lookback;
    to_.num_params = from_.num_params;
    to_.num_sources = 0;
    to_.max_drafts = from_.max_drafts;
    to_.length_limit = from_.length_limit;
    to_.redistributes = from_.redistributes;
    to_.copy_blocks = from_.copy_blocks;
    to_.copy_slots = from_.copy_slots;
    to_.copy_ids = from_.copy_ids;
    to_.preempted = from_.preempted;
    to_.expired = from_.expired;
  }

  void add(const Known& known) {
    const auto i = static_cast<std::size_t>(known.index);
    const bool sourced = from_.source[i] >= 0;
    const std::int32_t shift = sourced ? static_cast<std::int32_t>(known.tokens.size()) - 1 : 0;
    const std::int32_t start = from_.q_start[i] + shift;
    const std::int32_t length = sourced ? 1 + known.num_drafts : from_.q_len[i];
    if (from_.samples[i]) to_.sampling.push_back(static_cast<std::int32_t>(to_.num_seqs()));
    to_.seq_ids.push_back(from_.seq_ids[i]);
    to_.q_start.push_back(start);
    to_.q_len.push_back(length);
    to_.row_start.push_back(to_.row_start.back() + length);
    to_.slots.push_back(from_.slots[i]);
    to_.samples.push_back(from_.samples[i]);
    to_.decodes.push_back(from_.decodes[i]);
    to_.source.push_back(-1);
    to_.pending.push_back(0);
    to_.draft_limit.push_back(0);
    to_.prompt_len.push_back(from_.prompt_len[i]);
    to_.output_len.push_back(from_.output_len[i] + shift);
    copy_row(from_.params, i, from_.num_params, to_.params);
    copy_row(from_.block_table, i, from_.table_width, to_.block_table);
    for (std::int32_t row = 0; row < length; ++row) to_.positions.push_back(start + row);
    if (sourced) {
      add_resolved_tokens(known, shift, i);
    } else {
      copy_row(from_.context, i, from_.lookback, to_.context);
      const auto first = from_.token_ids.begin() + from_.row_start[i];
      to_.token_ids.insert(to_.token_ids.end(), first, first + length);
    }
  }

  void add_resolved_tokens(const Known& known, std::int32_t shift, std::size_t i) {
    to_.token_ids.push_back(known.tokens.back());
    const auto drafts = known.drafts.first(static_cast<std::size_t>(known.num_drafts));
    to_.token_ids.insert(to_.token_ids.end(), drafts.begin(), drafts.end());
    for (std::int32_t k = 0; k < from_.lookback; ++k) {
      const std::size_t before =
          i * static_cast<std::size_t>(from_.lookback) + static_cast<std::size_t>(k - shift);
      to_.context.push_back(k < shift ? known.tokens[static_cast<std::size_t>(shift - 1 - k)]
                                      : from_.context[before]);
    }
  }

  template <typename T>
  static void copy_row(const std::vector<T>& from, std::size_t row, std::int32_t width, std::vector<T>& to) {
    const auto first = from.begin() + static_cast<std::ptrdiff_t>(row) * width;
    to.insert(to.end(), first, first + width);
  }

  const StepPlan& from_;
  const StepOutcome& outcome_;
  StepPlan& to_;
  std::vector<std::int32_t> offsets_;  // of each source's tokens
};

}  // namespace

void check_outcome(const StepOutcome& outcome, std::size_t num_sampling, std::int32_t max_drafts) {
  const auto check_size = [&](const char* name, std::size_t size, std::size_t expected) {
    if (size == expected) return;
    throw std::invalid_argument(std::string(name) + " has " + to_string(size) + " entries, a step of " +
                                to_string(num_sampling) + " sampling sequences needs " + to_string(expected));
  };
  check_size("counts", outcome.counts.size(), num_sampling);
  const std::size_t draft_cells = num_sampling * static_cast<std::size_t>(max_drafts);
  if (outcome.drafts) check_size("drafts", outcome.drafts->size(), draft_cells);
  if (outcome.confidences) check_size("confidences", outcome.confidences->size(), draft_cells);
  std::int64_t total = 0;
  for (std::size_t i = 0; i < outcome.counts.size(); ++i) {
    const std::int32_t count = outcome.counts[i];
    if (count < 0) {
      throw std::invalid_argument("counts[" + to_string(i) + "] must be at least 0, got " + to_string(count));
    }
    total += count;
  }
  if (total != static_cast<std::int64_t>(outcome.tokens.size())) {
    throw std::invalid_argument("counts add up to " + to_string(total) + ", tokens has " +
                                to_string(outcome.tokens.size()) + " entries");
  }
}

std::vector<std::int32_t> resolve(const StepPlan& from, const StepOutcome& outcome, StepPlan& to) {
  check_outcome(outcome, from.num_sources, from.max_drafts);
  return Resolver(from, outcome, to).run();
}

std::span<const Token> draft_row(const StepOutcome& outcome, std::size_t index, std::int32_t max_drafts) {
  if (!outcome.drafts) return {};
  const auto width = static_cast<std::size_t>(max_drafts);
  const auto row = outcome.drafts->subspan(index * width, width);
  const auto end = std::find_if(row.begin(), row.end(), [](Token token) { return token < 0; });
  return row.first(static_cast<std::size_t>(end - row.begin()));
}

void append_draft_rates(const StepOutcome& outcome, std::size_t index, std::int32_t max_drafts,
                        std::size_t count, std::vector<float>& rates) {
  const std::size_t before = rates.size();
  rates.resize(before + count, 1.0F);
  if (!outcome.confidences) return;
  const auto row = outcome.confidences->subspan(index * static_cast<std::size_t>(max_drafts), count);
  accumulate_rates(row, std::span(rates).subspan(before));
}

}  // namespace di::scheduler
