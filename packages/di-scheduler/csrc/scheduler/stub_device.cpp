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
  std::unique_lock lock(mutex_);
  for (;;) {
    submitted_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    if (!first_begin_) first_begin_ = Clock::now();
    lock.unlock();

    StubResult result;
    try {
      result = compute(job);
    } catch (...) {
      result.error = std::current_exception();
    }
    const auto rows = result.error ? 0.0 : static_cast<double>(result.plan->token_ids.size());
    const std::chrono::duration<double, std::micro> duration(base_us_ + row_us_ * rows);
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(duration);
    while (Clock::now() < end) {
    }
    last_ = result;

    lock.lock();
    busy_seconds_ += duration.count() * 1e-6;
    last_end_ = Clock::now();
    results_.push_back(std::move(result));
    finished_.notify_one();
  }
}

StepPlanPtr StubDevice::resolved(const Job& job) const {
  if (!job.plan->has_sources()) return job.plan;
  StepPlanPtr plan = job.pool.take();
  resolve(*job.plan, last_.outcome(), *plan);
  return plan;
}

// Accepts a varying part of the drafts and proposes as many new ones as a step can hold.
StubResult StubDevice::compute(const Job& job) const {
  StubResult result;
  result.plan = resolved(job);
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
  return result;
}

}  // namespace di::scheduler
