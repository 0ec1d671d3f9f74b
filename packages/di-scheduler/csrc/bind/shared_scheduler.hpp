// A scheduler that several threads may call, and the plans that it hands out.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "scheduler/resolve.hpp"
#include "scheduler/scheduler.hpp"

namespace di::scheduler {

// One call at a time. A caller never holds the interpreter lock while it works under this one.
class SharedScheduler {
 public:
  explicit SharedScheduler(const Config& config) : scheduler_(config) {}

  template <typename Function>
  auto with(Function&& function) {
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
    StepPlanPtr result = StepPlanPool(pool).take();
    resolve(*plan, outcome, *result);
    return {std::move(result), pool};
  }

  PlanHandle after(const PlanHandle& earlier) const {
    StepPlanPtr result = StepPlanPool(pool).take();
    *result = *plan;
    const StepPlan& before = *earlier.plan;
    result->preempted.insert(result->preempted.begin(), before.preempted.begin(), before.preempted.end());
    result->expired.insert(result->expired.begin(), before.expired.begin(), before.expired.end());
    return {std::move(result), pool};
  }
};

}  // namespace di::scheduler
