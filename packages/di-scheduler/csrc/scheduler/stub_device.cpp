#include "scheduler/stub_device.hpp"

#include <utility>

namespace di::scheduler {

namespace {

// Any function of what is at hand will do; this one spreads well.
Token made_up_token(std::int64_t seq_id, std::int32_t position) {
  const std::uint64_t mixed = (static_cast<std::uint64_t>(seq_id) * 0x9e3779b97f4a7c15U) ^
                              (static_cast<std::uint64_t>(position) * 0xbf58476d1ce4e5b9U);
  return static_cast<Token>((mixed >> 33) % 30000);
}

}  // namespace

StubDevice::StubDevice(double base_us, double row_us)
    : base_us_(base_us), row_us_(row_us), worker_([this] { work(); }) {}

StubDevice::~StubDevice() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  submitted_.notify_all();
  worker_.join();
}

void StubDevice::submit(StepPlanPtr plan, StepPlanPool pool) {
  {
    const std::scoped_lock lock(mutex_);
    jobs_.push_back({std::move(plan), std::move(pool)});
  }
  submitted_.notify_one();
}

std::optional<StubResult> StubDevice::wait(std::chrono::duration<double> timeout) {
  std::unique_lock lock(mutex_);
  if (!finished_.wait_for(lock, timeout, [this] { return !results_.empty(); })) return std::nullopt;
  StubResult result = std::move(results_.front());
  results_.pop_front();
  if (result.error) std::rethrow_exception(result.error);
  return result;
}

double StubDevice::busy_seconds() {
  const std::scoped_lock lock(mutex_);
  return busy_seconds_;
}

double StubDevice::span_seconds() {
  const std::scoped_lock lock(mutex_);
  if (!first_begin_) return 0.0;
  return std::chrono::duration<double>(last_end_ - *first_begin_).count();
}

void StubDevice::reset_times() {
  const std::scoped_lock lock(mutex_);
  first_begin_.reset();
  busy_seconds_ = 0.0;
}

void StubDevice::work() {
  bool untold = false;  // whether there is a result that the host has not been woken for
  std::unique_lock lock(mutex_);
  for (;;) {
    if (jobs_.empty() && std::exchange(untold, false)) finished_.notify_one();
    submitted_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    if (!first_begin_) first_begin_ = Clock::now();
    lock.unlock();

    // What follows the beginning, telling the host of the step before too, is the device's own time.
    StubResult result;
    double busy_seconds = 0.0;
    try {
      result.plan = resolved(job);
      const auto begin = Clock::now();
      if (std::exchange(untold, false)) finished_.notify_one();
      compute(result);
      busy_seconds = spin_until(begin, result.plan->token_ids.size());
    } catch (...) {
      result.error = std::current_exception();
    }
    last_ = result;

    lock.lock();
    busy_seconds_ += busy_seconds;
    last_end_ = Clock::now();
    results_.push_back(std::move(result));
    untold = true;
  }
}

// Keeps the core busy for what a step of `rows` takes from `begin` on; that many seconds, or how many it were
// more.
double StubDevice::spin_until(Clock::time_point begin, std::size_t rows) const {
  const std::chrono::duration<double, std::micro> duration(base_us_ + row_us_ * static_cast<double>(rows));
  const auto end = begin + std::chrono::duration_cast<Clock::duration>(duration);
  auto now = Clock::now();
  while (now < end) now = Clock::now();
  return std::chrono::duration<double>(now - begin).count();
}

StepPlanPtr StubDevice::resolved(const Job& job) const {
  if (!job.plan->has_sources()) return job.plan;
  StepPlanPtr plan = job.pool.take();
  resolve(*job.plan, last_.outcome(), *plan);
  return plan;
}

// Accepts a varying part of the drafts and proposes as many new ones as a step can hold.
void StubDevice::compute(StubResult& result) {
  const StepPlan& plan = *result.plan;
  for (const std::int32_t index : plan.sampling) {
    const auto i = static_cast<std::size_t>(index);
    const std::int32_t start = plan.q_start[i], drafts = plan.decodes[i] != 0 ? plan.q_len[i] - 1 : 0;
    const std::int32_t position = start + plan.q_len[i] - drafts;
    const std::int32_t accepted = made_up_token(plan.seq_ids[i], start) % (drafts + 1);
    const auto row = static_cast<std::size_t>(plan.row_start[i]);
    for (std::int32_t k = 1; k <= accepted; ++k) {
      result.tokens.push_back(plan.token_ids[row + static_cast<std::size_t>(k)]);
    }
    result.tokens.push_back(made_up_token(plan.seq_ids[i], position + accepted));
    result.counts.push_back(accepted + 1);
    for (std::int32_t k = 1; k <= plan.max_drafts; ++k) {
      result.drafts.push_back(made_up_token(plan.seq_ids[i], position + accepted + k));
    }
  }
}

}  // namespace di::scheduler
