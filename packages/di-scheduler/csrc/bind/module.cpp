// Python bindings of the scheduler. Arrays go in as views of the exact dtype (no conversion, no copy) and
// come out as read-only NumPy arrays that own their memory.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bind/speculation.hpp"
#include "scheduler/block_pool.hpp"
#include "scheduler/errors.hpp"
#include "scheduler/scheduler.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace di::scheduler {
namespace {

template <typename T>
using ArrayView = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
std::span<const T> as_span(const ArrayView<T>& array) {
  if (reinterpret_cast<std::uintptr_t>(array.data()) % alignof(T) != 0) {
    throw nb::type_error("an array must be aligned in memory to the size of its items");
  }
  return {array.data(), array.size()};
}

// A read-only array over memory that `owner` keeps alive.
template <typename T, typename... Sizes>
nb::object array_view(const T* data, nb::handle owner, Sizes... sizes) {
  return nb::cast(nb::ndarray<nb::numpy, const T>(data, {static_cast<std::size_t>(sizes)...}, owner));
}

template <typename T>
nb::object array_view(const std::vector<T>& values, nb::handle owner) {
  return array_view(values.data(), owner, values.size());
}

template <typename T>
nb::capsule owner_of(std::unique_ptr<T> object) {
  nb::capsule owner(object.get(), [](void* p) noexcept { delete static_cast<T*>(p); });
  object.release();
  return owner;
}

template <typename T>
nb::object owned_array(std::vector<T> values) {
  auto held = std::make_unique<std::vector<T>>(std::move(values));
  const std::vector<T>& view = *held;
  return array_view(view, owner_of(std::move(held)));
}

nb::dict plan_arrays(std::unique_ptr<StepPlan> plan, std::int32_t lookback) {
  const StepPlan& p = *plan;
  const nb::capsule owner = owner_of(std::move(plan));
  static_assert(sizeof(bool) == 1);
  const auto* samples = reinterpret_cast<const bool*>(p.samples.data());
  nb::dict arrays;
  arrays["seq_ids"] = array_view(p.seq_ids, owner);
  arrays["q_start"] = array_view(p.q_start, owner);
  arrays["q_len"] = array_view(p.q_len, owner);
  arrays["row_start"] = array_view(p.row_start, owner);
  arrays["token_ids"] = array_view(p.token_ids, owner);
  arrays["positions"] = array_view(p.positions, owner);
  arrays["context"] = array_view(p.context.data(), owner, p.seq_ids.size(), lookback);
  arrays["block_table"] = array_view(p.block_table.data(), owner, p.seq_ids.size(), p.table_width);
  arrays["slots"] = array_view(p.slots, owner);
  arrays["samples"] = array_view(samples, owner, p.samples.size());
  arrays["sampling"] = array_view(p.sampling, owner);
  arrays["prompt_len"] = array_view(p.prompt_len, owner);
  arrays["output_len"] = array_view(p.output_len, owner);
  arrays["preempted"] = array_view(p.preempted, owner);
  arrays["step"] = p.step;
  arrays["num_seqs"] = p.seq_ids.size();
  arrays["num_rows"] = p.token_ids.size();
  return arrays;
}

nb::dict commit_arrays(CommitResult result) {
  nb::dict arrays;
  arrays["seq_ids"] = owned_array(std::move(result.seq_ids));
  arrays["num_committed"] = owned_array(std::move(result.num_committed));
  arrays["finish"] = owned_array(std::move(result.finish));
  return arrays;
}

nb::dict stats(const Scheduler& scheduler) {
  const SequenceCache& cache = scheduler.cache();
  const Counters& counters = scheduler.counters();
  nb::dict values;
  values["free_blocks"] = cache.blocks().num_free();
  values["used_blocks"] = cache.blocks().num_used();
  values["free_slots"] = cache.slots().num_free();
  values["used_slots"] = cache.slots().num_used();
  values["waiting"] = scheduler.waiting().size();
  values["running"] = scheduler.running().size();
  values["preemptions"] = counters.preemptions;
  values["aborts"] = counters.aborts;
  values["refusals"] = counters.refusals;
  values["steps"] = counters.steps;
  values["chunks"] = counters.chunks;
  values["mixed_steps"] = counters.mixed_steps;
  std::optional<double> oldest;
  if (!scheduler.waiting().empty()) oldest = scheduler.waiting().front()->arrival();
  values["oldest_waiting_arrival"] = oldest;
  return values;
}

const Sequence& find_sequence(const Scheduler& scheduler, SeqId id) {
  const Sequence* sequence = scheduler.find(id);
  if (sequence == nullptr) throw nb::key_error(std::to_string(id).c_str());
  return *sequence;
}

nb::dict describe(const Scheduler& scheduler, SeqId id) {
  const Sequence& sequence = find_sequence(scheduler, id);
  nb::dict values;
  values["state"] = static_cast<int>(sequence.state());
  values["finish"] = static_cast<int>(sequence.finish_reason());
  values["arrival"] = sequence.arrival();
  values["length"] = sequence.length();
  values["num_computed"] = sequence.num_computed();
  values["num_preemptions"] = sequence.num_preemptions();
  values["block_table"] = owned_array(sequence.block_table);
  values["slot"] = sequence.slot;
  return values;
}

nb::object output_tokens(const Scheduler& scheduler, SeqId id) {
  const auto output = find_sequence(scheduler, id).output();
  return owned_array(std::vector<Token>(output.begin(), output.end()));
}

nb::object queue_ids(const ArrivalQueue& queue) {
  std::vector<SeqId> ids;
  for (const SequencePtr& sequence : queue) ids.push_back(sequence->id());
  return owned_array(std::move(ids));
}

// The exception classes are Python's, so that they can carry typed attributes (di_scheduler.errors).
void translate(const std::exception_ptr& error, void*) {
  const auto python_class = [](const char* name) {
    return nb::module_::import_("di_scheduler.errors").attr(name);
  };
  try {
    std::rethrow_exception(error);
  } catch (const AdmissionError& e) {
    const nb::object type = python_class("AdmissionError");
    PyErr_SetObject(type.ptr(), type(e.reason, e.what()).ptr());
  } catch (const StepOrderError& e) {
    PyErr_SetString(python_class("StepOrderError").ptr(), e.what());
  } catch (const BlockPoolError& e) {
    PyErr_SetString(python_class("BlockPoolError").ptr(), e.what());
  }
}

void bind_block_pool(nb::module_& m) {
  nb::enum_<AllocStatus>(m, "AllocStatus", "Whether a pool can supply a number of indices.")
      .value("NEVER", AllocStatus::kNever, "More than the pool has at all.")
      .value("OK", AllocStatus::kOk, "Allocating them now succeeds.")
      .value("LATER", AllocStatus::kLater, "Possible when others have freed theirs.");

  nb::class_<BlockPool>(
      m, "BlockPool",
      "Reference-counted allocator of the indices 1 .. num_blocks-1; index 0 is never handed out.\n\n"
      "What was freed first is reused first. All operations are O(1) per index and all or nothing: one\n"
      "that raises BlockPoolError has changed nothing.")
      .def(nb::init<std::int32_t>(), "num_blocks"_a)
      .def(
          "allocate", [](BlockPool& pool, std::int32_t count) { return owned_array(pool.allocate(count)); },
          "count"_a, "Take free indices, each with one reference; int32 [count].")
      .def(
          "pin", [](BlockPool& pool, const ArrayView<BlockId>& ids) { pool.pin(as_span(ids)); },
          nb::arg("ids").noconvert(), "Add one reference per occurrence in ids, int32 [n]; all must be live.")
      .def(
          "free", [](BlockPool& pool, const ArrayView<BlockId>& ids) { pool.free(as_span(ids)); },
          nb::arg("ids").noconvert(),
          "Drop one reference per occurrence in ids, int32 [n], the last entry first, so that the tail of a\n"
          "sequence is reused before its head.")
      .def("can_allocate", &BlockPool::can_allocate, "count"_a,
           "Whether count indices, at least 0, can be had: an AllocStatus.")
      .def("ref_count", &BlockPool::ref_count, "block_id"_a, "References of an index; 0: free.")
      .def(
          "free_list", [](const BlockPool& pool) { return owned_array(pool.free_list()); },
          "Free indices, next one first; int32 [num_free].")
      .def(
          "free_list_backwards",
          [](const BlockPool& pool) { return owned_array(pool.free_list_backwards()); },
          "The same list walked from its end, for tests.")
      .def_prop_ro("num_blocks", &BlockPool::num_blocks)
      .def_prop_ro("num_free", &BlockPool::num_free)
      .def_prop_ro("num_used", &BlockPool::num_used);
}

void bind_scheduler(nb::module_& m) {
  nb::class_<Scheduler>(m, "Scheduler")
      .def(
          "__init__",
          [](Scheduler* self, std::int32_t num_blocks, std::int32_t num_slots, std::int32_t block_size,
             std::int32_t max_num_seqs, std::int32_t max_num_batched_tokens, std::int32_t max_chunk_tokens,
             std::int32_t max_model_len, std::int32_t lookback, bool homogeneous) {
            new (self) Scheduler({num_blocks, num_slots, block_size, max_num_seqs, max_num_batched_tokens,
                                  max_chunk_tokens, max_model_len, lookback,
                                  homogeneous ? StepPolicy::kHomogeneous : StepPolicy::kMixed});
          },
          nb::kw_only(), "num_blocks"_a, "num_slots"_a, "block_size"_a, "max_num_seqs"_a,
          "max_num_batched_tokens"_a, "max_chunk_tokens"_a, "max_model_len"_a, "lookback"_a, "homogeneous"_a)
      .def(
          "add",
          [](Scheduler& self, SeqId id, const ArrayView<Token>& prompt, std::int32_t max_tokens,
             std::int32_t min_tokens, std::vector<Token> eos_token_ids, std::vector<Token> stop_token_ids,
             bool ignore_eos, double arrival) {
            self.add(
                id, as_span(prompt),
                {max_tokens, min_tokens, std::move(eos_token_ids), std::move(stop_token_ids), ignore_eos},
                arrival);
          },
          "seq_id"_a, nb::arg("prompt").noconvert(), "max_tokens"_a, "min_tokens"_a, "eos_token_ids"_a,
          "stop_token_ids"_a, "ignore_eos"_a, "arrival"_a)
      .def(
          "finish",
          [](Scheduler& self, SeqId id, int reason) {
            return self.finish(id, static_cast<FinishReason>(reason));
          },
          "seq_id"_a, "reason"_a)
      .def("plan", [](Scheduler& self) { return plan_arrays(self.plan(), self.config().lookback); })
      .def(
          "commit",
          [](Scheduler& self, const ArrayView<Token>& tokens, const ArrayView<std::int32_t>& counts,
             const std::optional<ArrayView<bool>>& failed) {
            std::optional<std::span<const bool>> flags;
            if (failed) flags = as_span(*failed);
            return commit_arrays(self.commit(as_span(tokens), as_span(counts), flags));
          },
          nb::arg("tokens").noconvert(), nb::arg("counts").noconvert(), nb::arg("failed").noconvert().none())
      .def("has_unfinished", &Scheduler::has_unfinished)
      .def("stats", &stats)
      .def("describe", &describe, "seq_id"_a)
      .def("output_tokens", &output_tokens, "seq_id"_a)
      .def("waiting_ids", [](const Scheduler& self) { return queue_ids(self.waiting()); })
      .def("running_ids", [](const Scheduler& self) { return queue_ids(self.running()); });
}

}  // namespace
}  // namespace di::scheduler

NB_MODULE(_native, m) {
  m.doc() = "C++ core of di_scheduler; use the classes of the package instead.";
  nb::register_exception_translator(di::scheduler::translate);
  di::scheduler::bind_block_pool(m);
  di::scheduler::bind_scheduler(m);
  di::scheduler::bind_speculation(m);
}
