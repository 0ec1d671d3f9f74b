#include "bind/scheduler.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bind/outcome.hpp"
#include "bind/shared_scheduler.hpp"
#include "bind/step_plan.hpp"
#include "scheduler/calibration.hpp"
#include "scheduler/errors.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace di::scheduler {
namespace {

struct Snapshot {
  Counters counters;
  std::int32_t free_blocks, used_blocks, free_slots, used_slots;
  std::size_t waiting, running;
  std::int64_t prompted = 0, receiving = 0, not_ready = 0, preemptions, preemptions_in_flight;
  std::optional<double> oldest_waiting_arrival;
};

Snapshot snapshot(const Scheduler& scheduler) {
  const SequenceCache& cache = scheduler.cache();
  const Lifecycle& lifecycle = scheduler.lifecycle();
  Snapshot s{.counters = scheduler.counters(),
             .free_blocks = cache.blocks().num_free(),
             .used_blocks = cache.blocks().num_used(),
             .free_slots = cache.slots().num_free(),
             .used_slots = cache.slots().num_used(),
             .waiting = lifecycle.waiting().size(),
             .running = lifecycle.running().size(),
             .preemptions = lifecycle.num_preemptions(),
             .preemptions_in_flight = lifecycle.num_preemptions_in_flight(),
             .oldest_waiting_arrival = std::nullopt};
  for (const auto& [id, sequence] : lifecycle.live()) {
    s.prompted += sequence->state() == SequenceState::kPrompted ? 1 : 0;
    s.receiving += sequence->state() == SequenceState::kReceiving ? 1 : 0;
    s.not_ready += sequence->ready() ? 0 : 1;
  }
  s.oldest_waiting_arrival = lifecycle.waiting().earliest_arrival();
  return s;
}

nb::dict stats(SharedScheduler& shared) {
  const Snapshot s = shared.with(snapshot);
  const Counters& counters = s.counters;
  nb::dict values;
  values["free_blocks"] = s.free_blocks;
  values["used_blocks"] = s.used_blocks;
  values["free_slots"] = s.free_slots;
  values["used_slots"] = s.used_slots;
  values["waiting"] = s.waiting;
  values["running"] = s.running;
  values["prompted"] = s.prompted;
  values["receiving"] = s.receiving;
  values["not_ready"] = s.not_ready;
  values["preemptions"] = s.preemptions;
  values["preemptions_in_flight"] = s.preemptions_in_flight;
  values["aborts"] = counters.aborts;
  values["refusals"] = counters.refusals;
  values["expirations"] = counters.expirations;
  values["steps"] = counters.steps;
  values["chunks"] = counters.chunks;
  values["mixed_steps"] = counters.mixed_steps;
  values["drafts_planned"] = counters.drafts_planned;
  values["drafts_accepted"] = counters.drafts_accepted;
  values["tokens_committed"] = counters.tokens_committed;
  values["num_first_scheduled"] = counters.num_first_scheduled;
  values["steps_waited_sum"] = counters.steps_waited_sum;
  values["steps_waited_max"] = counters.steps_waited_max;
  values["wait_sum"] = counters.wait_sum;
  values["wait_max"] = counters.wait_max;
  values["num_first_tokens"] = counters.num_first_tokens;
  values["first_token_wait_sum"] = counters.first_token_wait_sum;
  values["first_token_wait_max"] = counters.first_token_wait_max;
  values["oldest_waiting_arrival"] = s.oldest_waiting_arrival;
  return values;
}

const Sequence& find_sequence(const Scheduler& scheduler, SeqId id) {
  const Sequence* sequence = scheduler.find(id);
  if (sequence == nullptr) {
    throw std::out_of_range("seq_id " + std::to_string(id) +
                            " is unknown, or has ended before the last plan");
  }
  return *sequence;
}

// nanobind turns std::out_of_range into IndexError; an id is a key.
template <typename Function>
auto by_key(Function&& function) {
  try {
    return function();
  } catch (const std::out_of_range& error) {
    throw nb::key_error(error.what());
  }
}

struct Description {
  SequenceState state;
  FinishReason finish;
  double arrival;
  std::int32_t length, prompt_length, num_computed, num_preemptions;
  bool in_flight;
  std::vector<BlockId> block_table;
  BlockId slot;
};

Description describe_sequence(const Sequence& s) {
  return {s.state(),        s.finish_reason(),   s.arrival(),   s.length(),    s.prompt_length(),
          s.num_computed(), s.num_preemptions(), s.in_flight(), s.block_table, s.slot};
}

nb::dict describe(SharedScheduler& shared, SeqId id) {
  Description d = by_key([&] {
    return shared.with([&](const Scheduler& s) { return describe_sequence(find_sequence(s, id)); });
  });
  nb::dict values;
  values["state"] = static_cast<int>(d.state);
  values["finish"] = static_cast<int>(d.finish);
  values["arrival"] = d.arrival;
  values["length"] = d.length;
  values["prompt_len"] = d.prompt_length;
  values["num_computed"] = d.num_computed;
  values["num_preemptions"] = d.num_preemptions;
  values["in_flight"] = d.in_flight;
  values["block_table"] = owned_array(std::move(d.block_table));
  values["slot"] = d.slot;
  return values;
}

nb::object output_tokens(SharedScheduler& shared, SeqId id) {
  return owned_array(by_key([&] {
    return shared.with([&](const Scheduler& scheduler) {
      const auto output = find_sequence(scheduler, id).output();
      return std::vector<Token>(output.begin(), output.end());
    });
  }));
}

nb::object waiting_ids(SharedScheduler& shared) {
  return owned_array(shared.with([](const Scheduler& scheduler) {
    std::vector<SeqId> ids;
    for (const Sequence* sequence : scheduler.lifecycle().waiting().in_order()) ids.push_back(sequence->id());
    return ids;
  }));
}

nb::object running_ids(SharedScheduler& shared) {
  return owned_array(shared.with([](const Scheduler& scheduler) {
    std::vector<SeqId> ids;
    for (const SequencePtr& sequence : scheduler.lifecycle().running()) ids.push_back(sequence->id());
    return ids;
  }));
}

void check_time(const char* name, double time) {
  if (std::isfinite(time)) return;
  throw ConfigError(std::string(name) + " must be a finite number, got " + std::to_string(time));
}

PlanHandle make_plan(SharedScheduler& shared, double now, int kind) {
  check_time("now", now);
  if (kind < 0 || kind > 2) throw ConfigError("kind must be a StepKind, got " + std::to_string(kind));
  return shared.with([&](Scheduler& scheduler) -> PlanHandle {
    return {scheduler.plan(now, static_cast<StepKind>(kind)), scheduler.plan_pool()};
  });
}

CommitResult commit(SharedScheduler& shared, const StepOutcome& outcome,
                    std::optional<std::span<const bool>> failed, double now) {
  check_time("now", now);
  return shared.with([&](Scheduler& scheduler) { return scheduler.commit(outcome, failed, now); });
}

Options make_options(std::int32_t priority, std::int64_t user, double weight, bool ready,
                     std::optional<double> deadline, std::vector<std::int32_t> checkpoints,
                     const std::vector<std::pair<std::int32_t, std::int32_t>>& images,
                     std::vector<double> params) {
  Options options{priority, user, weight, ready, deadline, std::move(checkpoints), {}, std::move(params)};
  for (const auto& [first, count] : images) options.images.push_back({first, count});
  return options;
}

void bind_values(nb::module_& m) {
  nb::class_<Limits>(m, "Limits")
      .def(
          "__init__",
          [](Limits* self, std::int32_t max_tokens, std::int32_t min_tokens, std::vector<Token> eos,
             std::vector<Token> stop, bool ignore_eos) {
            new (self) Limits{max_tokens, min_tokens, std::move(eos), std::move(stop), ignore_eos};
          },
          "max_tokens"_a, "min_tokens"_a, "eos_token_ids"_a, "stop_token_ids"_a, "ignore_eos"_a);
  nb::class_<Options>(m, "Options")
      .def(
          "__init__",
          [](Options* self, std::int32_t priority, std::int64_t user, double weight, bool ready,
             std::optional<double> deadline, std::vector<std::int32_t> checkpoints,
             const std::vector<std::pair<std::int32_t, std::int32_t>>& images, std::vector<double> params) {
            new (self) Options(make_options(priority, user, weight, ready, deadline, std::move(checkpoints),
                                            images, std::move(params)));
          },
          "priority"_a, "user"_a, "weight"_a, "ready"_a, "deadline"_a.none(), "checkpoints"_a, "images"_a,
          "params"_a);
}

void bind_class(nb::module_& m) {
  nb::class_<SharedScheduler>(m, "Scheduler")
      .def(
          "__init__",
          [](SharedScheduler* self, std::int32_t num_blocks, std::int32_t num_slots, std::int32_t block_size,
             std::int32_t max_num_seqs, std::int32_t max_num_batched_tokens, std::int32_t max_chunk_tokens,
             std::int32_t max_model_len, std::int32_t max_draft_tokens, std::int32_t max_steps_in_flight,
             std::int64_t max_step_context, std::int32_t chunk_align, std::int32_t watermark_blocks,
             std::int32_t max_overtakes, std::int32_t lookback, std::int32_t num_params, bool homogeneous,
             int kind) {
            new (self) SharedScheduler(
                {num_blocks, num_slots, block_size, max_num_seqs, max_num_batched_tokens, max_chunk_tokens,
                 max_model_len, max_draft_tokens, max_steps_in_flight, max_step_context, chunk_align,
                 watermark_blocks, max_overtakes, lookback, num_params,
                 homogeneous ? StepPolicy::kHomogeneous : StepPolicy::kMixed, static_cast<EngineKind>(kind)});
          },
          nb::kw_only(), "num_blocks"_a, "num_slots"_a, "block_size"_a, "max_num_seqs"_a,
          "max_num_batched_tokens"_a, "max_chunk_tokens"_a, "max_model_len"_a, "max_draft_tokens"_a,
          "max_steps_in_flight"_a, "max_step_context"_a, "chunk_align"_a, "watermark_blocks"_a,
          "max_overtakes"_a, "lookback"_a, "num_params"_a, "homogeneous"_a, "kind"_a)
      .def(
          "add",
          [](SharedScheduler& self, SeqId id, const ArrayView<Token>& prompt, const Limits& limits,
             double arrival, const Options& options) {
            const auto tokens = as_span(prompt);
            self.with([&](Scheduler& s) { s.add(id, tokens, limits, arrival, options); });
          },
          "seq_id"_a, nb::arg("prompt").noconvert(), "limits"_a, "arrival"_a, "options"_a)
      .def(
          "set_ready",
          [](SharedScheduler& self, SeqId id) {
            return self.with([&](Scheduler& s) { return s.set_ready(id); });
          },
          "seq_id"_a)
      .def(
          "finish",
          [](SharedScheduler& self, SeqId id, int reason) {
            return self.with([&](Scheduler& s) { return s.finish(id, static_cast<FinishReason>(reason)); });
          },
          "seq_id"_a, "reason"_a)
      .def(
          "fork",
          [](SharedScheduler& self, SeqId parent, SeqId id, std::int32_t num_tokens, const Limits& limits,
             double arrival, const Options& options) {
            return by_key([&] {
              return self.with(
                  [&](Scheduler& s) { return s.fork(parent, id, num_tokens, limits, arrival, options); });
            });
          },
          "parent_id"_a, "seq_id"_a, "num_tokens"_a, "limits"_a, "arrival"_a, "options"_a)
      .def("plan", &make_plan, "now"_a, "kind"_a)
      .def(
          "commit",
          [](SharedScheduler& self, const ArrayView<Token>& tokens, const ArrayView<std::int32_t>& counts,
             const OptionalView<bool>& failed, const OptionalRows<Token>& drafts,
             const OptionalRows<float>& confidences, double now) {
            return commit(self, as_outcome(tokens, counts, drafts, confidences), as_optional_span(failed),
                          now);
          },
          nb::arg("tokens").noconvert(), nb::arg("counts").noconvert(), nb::arg("failed").noconvert().none(),
          nb::arg("drafts").noconvert().none(), nb::arg("confidences").noconvert().none(), "now"_a)
      .def(
          "begin_transfer",
          [](SharedScheduler& self, SeqId id, double expires) {
            return by_key(
                [&] { return self.with([&](Scheduler& s) { return s.begin_transfer(id, expires); }); });
          },
          "seq_id"_a, "expires"_a)
      .def(
          "import_sequence",
          [](SharedScheduler& self, SeqId id, const ArrayView<Token>& tokens, std::int32_t prompt_len,
             const Limits& limits, double expires, double arrival, const Options& options) {
            const auto span = as_span(tokens);
            return self.with([&](Scheduler& s) {
              return s.import_sequence(id, span, prompt_len, limits, expires, arrival, options);
            });
          },
          "seq_id"_a, nb::arg("tokens").noconvert(), "prompt_len"_a, "limits"_a, "expires"_a, "arrival"_a,
          "options"_a)
      .def(
          "end_transfer",
          [](SharedScheduler& self, Ticket ticket, bool ok) {
            return self.with([&](Scheduler& s) { return s.end_transfer(ticket, ok); });
          },
          "ticket"_a, "ok"_a)
      .def(
          "set_step_cost",
          [](SharedScheduler& self, const Calibration* calibration) {
            std::optional<StepCost> cost;
            if (calibration != nullptr) cost = calibration->cost();
            self.with([&](Scheduler& s) { s.set_step_cost(std::move(cost)); });
          },
          "calibration"_a.none())
      .def("wants_prefill",
           [](SharedScheduler& self) { return self.with([](Scheduler& s) { return s.wants_prefill(); }); })
      .def("has_decodes",
           [](SharedScheduler& self) { return self.with([](Scheduler& s) { return s.has_decodes(); }); })
      .def("has_unfinished",
           [](SharedScheduler& self) { return self.with([](Scheduler& s) { return s.has_unfinished(); }); })
      .def("num_open_plans",
           [](SharedScheduler& self) { return self.with([](Scheduler& s) { return s.num_open_plans(); }); })
      .def("stats", &stats)
      .def("describe", &describe, "seq_id"_a)
      .def("output_tokens", &output_tokens, "seq_id"_a)
      .def("waiting_ids", &waiting_ids)
      .def("running_ids", &running_ids);
}

}  // namespace

void bind_scheduler(nb::module_& m) {
  bind_values(m);
  bind_step_plan(m);
  bind_commit_result(m);
  bind_class(m);
}

}  // namespace di::scheduler
