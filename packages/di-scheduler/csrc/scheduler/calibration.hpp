// Keeps a StepCost in step with what the steps of a running engine take.
#pragma once

#include <cstdint>
#include <map>

#include "scheduler/medians.hpp"
#include "scheduler/step_cost.hpp"

namespace di::scheduler {

// Sliding medians of measured step times (scheduler spec, 12.4).
//
// Forward pass: every step gives the sample (forward_ms - curve(rows)) / computed rows. Within the last 5000
// steps, the median for each size of the curve that has at least 10 samples, and of those the median; below 0
// it counts as 0. Sampler: the median of the last 9 samples for a number of sequences from 5 samples on, else
// that over all numbers, else 0.
class Calibration {
 public:
  explicit Calibration(StepCost cost);

  // Takes the measured times of one finished step. False, and nothing changed, for what cannot be used: a
  // time that is not finite or below 0, or a step larger than a stepped curve has points for (it ran some
  // other way). Throws SpeculationError unless num_seqs and rows are at least 1.
  bool observe(std::int32_t num_seqs, std::int32_t rows, double forward_ms, double sampler_ms);

  // The cost in force.
  const StepCost& cost() const { return cost_; }

 private:
  void observe_sampler(std::int32_t num_seqs, double milliseconds);

  StepCost cost_;
  GroupedMedian slope_;  // grouped by size of the curve
  SlidingMedian any_sampler_;
  std::map<std::int32_t, SlidingMedian> samplers_;  // by number of sequences
};

}  // namespace di::scheduler
