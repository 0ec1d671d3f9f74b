// A scheduler that several threads may call, and the plans that it hands out.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <mutex>
#include <utility>

#include "scheduler/resolve.hpp"
#include "scheduler/scheduler.hpp"

namespace di::scheduler {

// One call at a time. Nobody holds the interpreter lock while waiting for this one or working under it: what
// runs under it must not touch Python.
class SharedScheduler {
 public:
  explicit SharedScheduler(const Config& config) : scheduler_(config) {}

  template <typename Function>
  auto with(Function&& function) {
    const nanobind::gil_scoped_release release;
    const std::scoped_lock lock(mutex_);
    return std::forward<Function>(function)(scheduler_);
  }

 private:
  std::mutex mutex_;
  Scheduler scheduler_;
};

// A plan with the memory that new ones are made in. The plan itself is never changed.
struct PlanHandle {
  StepPlanPtr plan;
  StepPlanPool pool;

  PlanHandle resolved(const StepOutcome& outcome) const {
    StepPlanPtr result = pool.take();
    resolve(*plan, outcome, *result);
    return {std::move(result), pool};
  }

  PlanHandle after(const PlanHandle& earlier) const {
    StepPlanPtr result = pool.take();
    *result = *plan;
    const StepPlan& before = *earlier.plan;
    result->preempted.insert(result->preempted.begin(), before.preempted.begin(), before.preempted.end());
    result->expired.insert(result->expired.begin(), before.expired.begin(), before.expired.end());
    return {std::move(result), pool};
  }
};

}  // namespace di::scheduler
