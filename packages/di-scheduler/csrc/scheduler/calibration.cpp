#include "scheduler/calibration.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "scheduler/speculation_error.hpp"

namespace di::scheduler {
namespace {

constexpr std::int32_t kSlopeWindow = 5000;
constexpr std::int32_t kSlopeMinSamples = 10;
constexpr std::int32_t kSamplerWindow = 9;
constexpr std::int32_t kSamplerMinSamples = 5;

bool is_duration(double milliseconds) { return std::isfinite(milliseconds) && milliseconds >= 0.0; }

void check_count(const char* name, std::int32_t value) {
  if (value < 1) {
    throw SpeculationError(std::string(name) + " must be at least 1, got " + std::to_string(value));
  }
}

}  // namespace

Calibration::Calibration(StepCost cost)
    : cost_(std::move(cost)),
      slope_(kSlopeWindow, kSlopeMinSamples),
      any_sampler_(kSamplerWindow, kSamplerMinSamples) {}

bool Calibration::observe(std::int32_t num_seqs, std::int32_t rows, double forward_ms, double sampler_ms) {
  check_count("num_seqs", num_seqs);
  check_count("rows", rows);
  if (rows > cost_.max_rows() || !is_duration(forward_ms) || !is_duration(sampler_ms)) return false;
  const StepCost::Piece& piece = *cost_.find(rows);
  const double excess = forward_ms - cost_.curve_milliseconds(piece, rows);
  slope_.add(cost_.nearest_size(rows), excess / cost_.computed_rows(piece, rows));
  cost_.set_slope(std::max(0.0, slope_.value().value_or(0.0)));
  observe_sampler(num_seqs, sampler_ms);
  return true;
}

void Calibration::observe_sampler(std::int32_t num_seqs, double milliseconds) {
  any_sampler_.add(milliseconds);
  cost_.set_default_sampler(any_sampler_.value().value_or(0.0));
  SlidingMedian& own = samplers_.try_emplace(num_seqs, kSamplerWindow, kSamplerMinSamples).first->second;
  own.add(milliseconds);
  if (const auto median = own.value()) cost_.set_sampler(num_seqs, *median);
}

}  // namespace di::scheduler
