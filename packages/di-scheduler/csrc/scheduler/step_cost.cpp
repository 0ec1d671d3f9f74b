#include "scheduler/step_cost.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>

#include "scheduler/speculation_error.hpp"

namespace di::scheduler {
namespace {

constexpr std::int32_t kUnlimited = std::numeric_limits<std::int32_t>::max();

void check_curve(const std::vector<std::int32_t>& sizes, const std::vector<double>& milliseconds) {
  if (sizes.empty() || sizes.size() != milliseconds.size()) {
    throw SpeculationError(
        "sizes and milliseconds must have one entry for each point and at least one, got " +
        std::to_string(sizes.size()) + " and " + std::to_string(milliseconds.size()));
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::string index = "[" + std::to_string(i) + "]";
    const std::int32_t above = i == 0 ? 0 : sizes[i - 1];
    if (sizes[i] <= above) {
      throw SpeculationError("sizes" + index + " must be greater than " + std::to_string(above) + ", got " +
                             std::to_string(sizes[i]));
    }
    if (!std::isfinite(milliseconds[i]) || milliseconds[i] <= 0.0) {
      throw SpeculationError("milliseconds" + index + " must be finite and greater than 0, got " +
                             std::to_string(milliseconds[i]));
    }
  }
}

}  // namespace

StepCost::StepCost(std::vector<std::int32_t> sizes, std::vector<double> milliseconds, bool stepped)
    : sizes_(std::move(sizes)), stepped_(stepped) {
  check_curve(sizes_, milliseconds);
  const std::size_t count = sizes_.size();
  if (stepped) {
    for (std::size_t i = 0; i < count; ++i) {
      pieces_.push_back({i == 0 ? 1 : sizes_[i - 1] + 1, sizes_[i], milliseconds[i], 0.0});
    }
    return;
  }
  if (sizes_[0] > 1) pieces_.push_back({1, sizes_[0] - 1, milliseconds[0], 0.0});
  double per_row = 0.0;
  for (std::size_t i = 0; i + 1 < count; ++i) {
    per_row = (milliseconds[i + 1] - milliseconds[i]) / (sizes_[i + 1] - sizes_[i]);
    pieces_.push_back({sizes_[i], sizes_[i + 1] - 1, milliseconds[i], per_row});
  }
  pieces_.push_back({sizes_.back(), kUnlimited, milliseconds.back(), std::max(0.0, per_row)});
}

const StepCost::Piece* StepCost::find(std::int32_t rows) const {
  if (rows < 1 || rows > max_rows()) {
    throw SpeculationError("rows must be from 1 to " + std::to_string(max_rows()) +
                           ", the largest step that the curve allows, got " + std::to_string(rows));
  }
  return &*std::lower_bound(pieces_.begin(), pieces_.end(), rows,
                            [](const Piece& piece, std::int32_t value) { return piece.last < value; });
}

double StepCost::sampler_milliseconds(std::int32_t num_seqs) const {
  const auto index = static_cast<std::size_t>(num_seqs);
  const bool known = num_seqs >= 0 && index < sampler_.size() && sampler_[index] >= 0.0;
  return known ? sampler_[index] : default_sampler_;
}

void StepCost::set_sampler(std::int32_t num_seqs, double milliseconds) {
  const auto index = static_cast<std::size_t>(num_seqs);
  if (index >= sampler_.size()) sampler_.resize(index + 1, -1.0);
  sampler_[index] = milliseconds;
}

double StepCost::milliseconds(std::int32_t rows, std::int32_t num_seqs) const {
  return forward_milliseconds(*find(rows), rows) + sampler_milliseconds(num_seqs);
}

std::int32_t StepCost::nearest_size(std::int32_t rows) const {
  const auto size = std::lower_bound(sizes_.begin(), sizes_.end(), rows);
  return size == sizes_.end() ? sizes_.back() : *size;
}

}  // namespace di::scheduler
