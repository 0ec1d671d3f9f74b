// Medians of the latest samples of a stream: what run-time calibration is made of (scheduler spec, 12.4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>

namespace di::scheduler {

// A multiset of finite doubles that knows its median. Insert and erase take O(log n).
class MedianSet {
 public:
  void insert(double value);
  // Removes one occurrence; the value must be present.
  void erase(double value);
  std::size_t size() const { return lower_.size() + upper_.size(); }
  // The middle value, or the mean of the middle two. The set must not be empty.
  double median() const;

 private:
  void balance();

  // No value of `lower_` is above one of `upper_`; `lower_` has as many values or one more.
  std::multiset<double> lower_;
  std::multiset<double> upper_;
};

// The median of the last `window` samples, known from `min_samples` samples on.
class SlidingMedian {
 public:
  // Throws SpeculationError unless 1 <= min_samples <= window.
  SlidingMedian(std::int32_t window, std::int32_t min_samples);
  // Takes a sample and forgets the one that leaves the window. Throws SpeculationError unless it is finite.
  void add(double sample);
  std::optional<double> value() const;

 private:
  std::size_t window_;
  std::size_t min_samples_;
  std::deque<double> samples_;  // oldest first
  MedianSet sorted_;
};

// Samples of several groups share one sliding window. The value is the median, over the groups that have at
// least `min_samples` in it, of each group's median: a group that is seen often weighs no more than one seen
// rarely.
class GroupedMedian {
 public:
  // Throws SpeculationError unless 1 <= min_samples <= window.
  GroupedMedian(std::int32_t window, std::int32_t min_samples);
  // As SlidingMedian::add, O(log window).
  void add(std::int32_t group, double sample);
  std::optional<double> value() const;

 private:
  struct Sample {
    std::int32_t group;
    double value;
  };

  // Both keep `medians_` in step with the group's own median.
  void insert(const Sample& sample);
  void erase(const Sample& sample);
  bool counts(const MedianSet& group) const { return group.size() >= min_samples_; }

  std::size_t window_;
  std::size_t min_samples_;
  std::deque<Sample> samples_;                // oldest first
  std::map<std::int32_t, MedianSet> groups_;  // never an empty set
  MedianSet medians_;                         // of the groups that count
};

}  // namespace di::scheduler
