#include "scheduler/medians.hpp"

#include <cmath>
#include <iterator>
#include <numeric>
#include <string>

#include "scheduler/speculation_error.hpp"

namespace di::scheduler {
namespace {

void check_window(std::int32_t window, std::int32_t min_samples) {
  if (min_samples < 1 || min_samples > window) {
    throw SpeculationError("min_samples must be from 1 to window = " + std::to_string(window) + ", got " +
                           std::to_string(min_samples));
  }
}

// NaN has no place in an order, and infinities have no mean.
void check_sample(double sample) {
  if (!std::isfinite(sample)) {
    throw SpeculationError("sample must be finite, got " + std::to_string(sample));
  }
}

}  // namespace

void MedianSet::insert(double value) {
  const bool low = lower_.empty() || value <= *lower_.rbegin();
  (low ? lower_ : upper_).insert(value);
  balance();
}

void MedianSet::erase(double value) {
  // A value equal to the largest of the lower half is certainly there, whatever copies the upper half has.
  std::multiset<double>& half = value <= *lower_.rbegin() ? lower_ : upper_;
  half.erase(half.find(value));
  balance();
}

void MedianSet::balance() {
  if (lower_.size() > upper_.size() + 1) {
    upper_.insert(lower_.extract(std::prev(lower_.end())));
  } else if (lower_.size() < upper_.size()) {
    lower_.insert(upper_.extract(upper_.begin()));
  }
}

double MedianSet::median() const {
  const double low = *lower_.rbegin();
  return lower_.size() > upper_.size() ? low : std::midpoint(low, *upper_.begin());
}

SlidingMedian::SlidingMedian(std::int32_t window, std::int32_t min_samples)
    : window_(window), min_samples_(min_samples) {
  check_window(window, min_samples);
}

void SlidingMedian::add(double sample) {
  check_sample(sample);
  if (samples_.size() == window_) {
    sorted_.erase(samples_.front());
    samples_.pop_front();
  }
  samples_.push_back(sample);
  sorted_.insert(sample);
}

std::optional<double> SlidingMedian::value() const {
  if (samples_.size() < min_samples_) return std::nullopt;
  return sorted_.median();
}

GroupedMedian::GroupedMedian(std::int32_t window, std::int32_t min_samples)
    : window_(window), min_samples_(min_samples) {
  check_window(window, min_samples);
}

void GroupedMedian::add(std::int32_t group, double sample) {
  check_sample(sample);
  if (samples_.size() == window_) {
    erase(samples_.front());
    samples_.pop_front();
  }
  samples_.push_back({group, sample});
  insert(samples_.back());
}

std::optional<double> GroupedMedian::value() const {
  if (medians_.size() == 0) return std::nullopt;
  return medians_.median();
}

void GroupedMedian::insert(const Sample& sample) {
  MedianSet& group = groups_[sample.group];
  if (counts(group)) medians_.erase(group.median());
  group.insert(sample.value);
  if (counts(group)) medians_.insert(group.median());
}

void GroupedMedian::erase(const Sample& sample) {
  const auto group = groups_.find(sample.group);
  if (counts(group->second)) medians_.erase(group->second.median());
  group->second.erase(sample.value);
  if (counts(group->second)) medians_.insert(group->second.median());
  if (group->second.size() == 0) groups_.erase(group);
}

}  // namespace di::scheduler
