// A device without a model: takes plans in order, needs a given time for each and makes tokens up.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "scheduler/resolve.hpp"
#include "scheduler/step_plan.hpp"

namespace di::scheduler {

// What a step of the stub took and gave. `plan` is the resolved one.
struct StubResult {
  StepPlanPtr plan;
  std::vector<Token> tokens;
  std::vector<std::int32_t> counts;
  std::vector<Token> drafts;  // rows of max_draft_tokens
  std::exception_ptr error;   // why the step was not computed; then nothing else is set

  StepOutcome outcome() const {
    StepOutcome o{tokens, counts, std::nullopt, std::nullopt};
    if (!drafts.empty()) o.drafts = drafts;
    return o;
  }
};

// For tests and benchmarks. A worker thread computes what is submitted, one step after another, as a real
// device does: a step whose predecessor was still in flight when it was planned is resolved just before it
// begins.
class StubDevice {
 public:
  using Clock = std::chrono::steady_clock;

  // A step takes base_us + row_us * rows microseconds, in which the worker keeps its core busy.
  StubDevice(double base_us, double row_us);
  ~StubDevice();
  StubDevice(const StubDevice&) = delete;
  StubDevice& operator=(const StubDevice&) = delete;

  void submit(StepPlanPtr plan, StepPlanPool pool);

  // The oldest result that nobody has taken; nothing when none comes within `timeout`. Throws what the step
  // threw.
  std::optional<StubResult> wait(std::chrono::duration<double> timeout);

  // Seconds spent in steps, and from the beginning of the first to the end of the last one: the rest is what
  // the device lost because of the host.
  double busy_seconds();
  double span_seconds();
  void reset_times();

 private:
  struct Job {
    StepPlanPtr plan;
    StepPlanPool pool;
  };

  void work();
  static void compute(StubResult& result);
  double spin_until(Clock::time_point begin, std::size_t rows) const;
  StepPlanPtr resolved(const Job& job) const;

  double base_us_, row_us_;
  StubResult last_;  // of the worker
  std::mutex mutex_;
  std::condition_variable submitted_, finished_;
  std::deque<Job> jobs_;
  std::deque<StubResult> results_;
  std::optional<Clock::time_point> first_begin_;
  Clock::time_point last_end_{};
  double busy_seconds_ = 0.0;
  bool stopping_ = false;
  std::thread worker_;  // last: it uses all of the above
};

}  // namespace di::scheduler
