#include "scheduler/speculation.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <string>

#include "scheduler/rate_sort.hpp"

namespace di::scheduler {
namespace {

void check_at_least(const char* name, std::int32_t value, std::int32_t low) {
  if (value < low) {
    throw SpeculationError(std::string(name) + " must be at least " + std::to_string(low) + ", got " +
                           std::to_string(value));
  }
}

// NaN fails the comparison too.
void check_rates(std::span<const float> rates) {
  for (std::size_t i = 0; i < rates.size(); ++i) {
    if (!(rates[i] >= 0.0f && rates[i] <= 1.0f)) {
      throw SpeculationError("rates[" + std::to_string(i) + "] must be from 0 to 1, got " +
                             std::to_string(rates[i]));
    }
  }
}

void check_order(std::span<const float> rates, std::span<const std::int32_t> starts) {
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    for (std::int32_t j = starts[i] + 1; j < starts[i + 1]; ++j) {
      if (rates[j] > rates[j - 1]) {
        throw SpeculationError("rates must not increase within sequence " + std::to_string(i) +
                               ", but rates[" + std::to_string(j) + "] = " + std::to_string(rates[j]) +
                               " follows " + std::to_string(rates[j - 1]));
      }
    }
  }
}

// A number that is smaller the earlier the draft ranks: the bits of a float >= 0 are ordered like the float.
// Adding 0 turns -0 into 0.
std::uint64_t rank_key(float rate, std::uint32_t index) {
  return static_cast<std::uint64_t>(~std::bit_cast<std::uint32_t>(rate + 0.0f)) << 32 | index;
}

}  // namespace

void check_starts(std::span<const std::int32_t> starts, std::size_t num_rates) {
  if (starts.empty() || starts.front() != 0 || static_cast<std::size_t>(starts.back()) != num_rates) {
    throw SpeculationError("starts must begin with 0 and end with the number of drafts, " +
                           std::to_string(num_rates));
  }
  for (std::size_t i = 1; i < starts.size(); ++i) {
    if (starts[i] < starts[i - 1]) {
      throw SpeculationError("starts must not decrease, but starts[" + std::to_string(i) + "] = " +
                             std::to_string(starts[i]) + " follows " + std::to_string(starts[i - 1]));
    }
  }
}

void accumulate_rates(std::span<const float> confidences, std::span<float> rates) {
  float rate = 1.0f;
  for (std::size_t i = 0; i < confidences.size(); ++i) {
    const float confidence = confidences[i];
    rate *= confidence > 0.0f ? std::min(confidence, 1.0f) : 0.0f;  // NaN fails the comparison
    rates[i] = rate;
  }
}

std::int32_t choose_draft_total(const StepCost& cost, std::int32_t base_rows, std::int32_t num_seqs,
                                std::int32_t max_drafts, std::vector<float> rates) {
  check_at_least("num_seqs", num_seqs, 0);
  check_at_least("base_rows", base_rows, num_seqs);
  check_at_least("max_drafts", max_drafts, 0);
  check_rates(rates);
  if (rates.empty() || max_drafts == 0) return 0;
  const StepCost::Piece* piece = cost.find(base_rows);
  for (float& rate : rates) rate += 0.0f;  // -0 becomes 0, which is the same rate with ordered bits
  sort_descending(rates);
  const double sampler = cost.sampler_milliseconds(num_seqs);
  const auto throughput = [&](double expected, std::int32_t rows) {
    while (rows > piece->last) ++piece;
    return expected / (cost.forward_milliseconds(*piece, rows) + sampler);
  };

  const std::size_t offered = std::min(rates.size(), static_cast<std::size_t>(max_drafts));
  const auto limit = static_cast<std::int32_t>(std::min<std::size_t>(offered, cost.max_rows() - base_rows));
  double expected = num_seqs;
  double best = throughput(expected, base_rows);
  std::int32_t total = 0;
  for (std::int32_t count = 1; count <= limit; ++count) {
    expected += rates[count - 1];
    const double candidate = throughput(expected, base_rows + count);
    if (candidate > best) {
      best = candidate;
      total = count;
    }
  }
  return total;
}

void distribute_drafts(std::span<const float> rates, std::span<const std::int32_t> starts, std::int32_t total,
                       std::span<std::int32_t> taken) {
  check_rates(rates);
  check_starts(starts, rates.size());
  if (taken.size() + 1 != starts.size()) {
    throw SpeculationError("taken must have " + std::to_string(starts.size() - 1) +
                           " entries, one for each sequence, got " + std::to_string(taken.size()));
  }
  check_order(rates, starts);
  if (total < 0 || static_cast<std::size_t>(total) > rates.size()) {
    throw SpeculationError("total must be from 0 to the number of rates, " + std::to_string(rates.size()) +
                           ", got " + std::to_string(total));
  }
  std::fill(taken.begin(), taken.end(), 0);
  if (total == 0) return;

  std::vector<std::uint64_t> keys(rates.size());
  for (std::size_t i = 0; i < rates.size(); ++i) keys[i] = rank_key(rates[i], static_cast<std::uint32_t>(i));
  std::vector<std::uint64_t> ranked = keys;
  std::nth_element(ranked.begin(), ranked.begin() + (total - 1), ranked.end());
  const std::uint64_t last = ranked[total - 1];
  for (std::size_t i = 0; i < taken.size(); ++i) {
    for (std::int32_t j = starts[i]; j < starts[i + 1]; ++j) taken[i] += keys[j] <= last;
  }
}

}  // namespace di::scheduler
