#include "bind/step_plan.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <vector>

#include "bind/outcome.hpp"
#include "bind/shared_scheduler.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace di::scheduler {
namespace {

const StepPlan& plan_of(nb::handle self) { return *nb::cast<const PlanHandle&>(self).plan; }

// Each looks at memory of the plan, which `self` keeps alive.
template <auto Member>
nb::object array_of(nb::handle self) {
  return array_view(plan_of(self).*Member, self);
}

template <auto Member>
nb::object flags_of(nb::handle self) {
  static_assert(sizeof(bool) == 1);
  const auto& values = plan_of(self).*Member;
  return array_view(reinterpret_cast<const bool*>(values.data()), self, values.size());
}

template <auto Member>
nb::object result_array(nb::handle self) {
  return array_view(nb::cast<const CommitResult&>(self).*Member, self);
}

PlanHandle resolve_plan(const PlanHandle& handle, const StepOutcome& outcome) {
  const nb::gil_scoped_release release;
  return handle.resolved(outcome);
}

}  // namespace

void bind_step_plan(nb::module_& m) {
  nb::class_<PlanHandle>(
      m, "StepPlan",
      "The rows of one step: S sequences, R rows, block tables W wide. Decodes come first.\n\n"
      "Its arrays are read-only views of memory that lives as long as one of them: they stay as they are,\n"
      "whatever the scheduler does next. What they *say* (who owns which block) holds until the commit of\n"
      "this plan. A plan that was made while another was open may have `source` entries of at least 0: it "
      "is\n"
      "computed as `resolve` gives it.")
      .def_prop_ro(
          "step",
          [](const PlanHandle& self) {
            const StepPlan& plan = *self.plan;
            return plan.step;
          },
          "Number of this step, counted from 1; an empty plan repeats the number of the step "
          "before.")
      .def_prop_ro(
          "num_seqs", [](const PlanHandle& self) { return self.plan->num_seqs(); },
          "S; 0 when there is nothing to do.")
      .def_prop_ro(
          "num_rows", [](const PlanHandle& self) { return self.plan->token_ids.size(); },
          "R, at most `max_num_batched_tokens`.")
      .def_prop_ro(
          "num_sampling", [](const PlanHandle& self) { return self.plan->sampling.size(); }, "n")
      .def_prop_ro(
          "num_copies",
          [](const PlanHandle& self) {
            return (self.plan->copy_blocks.size() + self.plan->copy_slots.size()) / 2;
          },
          "c + d")
      .def_prop_ro(
          "num_expired", [](const PlanHandle& self) { return self.plan->expired.size(); }, "e")
      .def_prop_ro(
          "inputs",
          [](nb::handle self) {
            const StepPlan& p = plan_of(self);
            return nb::make_tuple(buffer_view(p.token_ids, self), buffer_view(p.q_start, self),
                                  buffer_view(p.q_len, self), buffer_view(p.slots, self),
                                  buffer_view(p.block_table.data(), self, p.num_seqs(), p.table_width),
                                  buffer_view(p.context.data(), self, p.num_seqs(), p.lookback));
          },
          "`token_ids`, `q_start`, `q_len`, `slots`, `block_table` and `context` for native code: as arrays "
          "they\n"
          "would take it longer to make and to let go.")
      .def_prop_ro("seq_ids", &array_of<&StepPlan::seq_ids>, "[S] in the order of the rows.")
      .def_prop_ro("q_start", &array_of<&StepPlan::q_start>,
                   "[S] first position computed; positions before it are in the cache.")
      .def_prop_ro("q_len", &array_of<&StepPlan::q_len>, "[S] positions computed, at least 1.")
      .def_prop_ro("row_start", &array_of<&StepPlan::row_start>,
                   "[S + 1] first row of each sequence: exclusive prefix sums of `q_len`.")
      .def_prop_ro("token_ids", &array_of<&StepPlan::token_ids>, "[R] input token of each row.")
      .def_prop_ro("positions", &array_of<&StepPlan::positions>, "[R] position of each row in its sequence.")
      .def_prop_ro(
          "context",
          [](nb::handle self) {
            const StepPlan& p = plan_of(self);
            return array_view(p.context.data(), self, p.num_seqs(), p.lookback);
          },
          "[S, lookback] `context[i, k]` is the token at `q_start[i] - 1 - k`, -1 before the "
          "start of the sequence.")
      .def_prop_ro(
          "block_table",
          [](nb::handle self) {
            const StepPlan& p = plan_of(self);
            return array_view(p.block_table.data(), self, p.num_seqs(), p.table_width);
          },
          "[S, W] blocks in position order, 0 beyond the end of a table.")
      .def_prop_ro("slots", &array_of<&StepPlan::slots>, "[S] state slot of each sequence.")
      .def_prop_ro("samples", &flags_of<&StepPlan::samples>,
                   "[S] whether the last row of the sequence yields a token.")
      .def_prop_ro("sampling", &array_of<&StepPlan::sampling>,
                   "[n] indices into S where `samples` is true, ascending.")
      .def_prop_ro("decodes", &flags_of<&StepPlan::decodes>,
                   "[S] whether it is a decode: one row, and drafts in the rows behind it.")
      .def_prop_ro("source", &array_of<&StepPlan::source>,
                   "[S] index into the `sampling` of the open plan whose token this sequence waits for, "
                   "or -1.")
      .def_prop_ro("prompt_len", &array_of<&StepPlan::prompt_len>, "[S] prompt tokens.")
      .def_prop_ro("output_len", &array_of<&StepPlan::output_len>, "[S] generated tokens before this step.")
      .def_prop_ro(
          "params",
          [](nb::handle self) {
            const StepPlan& p = plan_of(self);
            return array_view(p.params.data(), self, p.num_seqs(), p.num_params);
          },
          "[S, num_params] of `SequenceOptions.params`.")
      .def_prop_ro(
          "copy_blocks",
          [](nb::handle self) {
            const StepPlan& p = plan_of(self);
            return array_view(p.copy_blocks.data(), self, p.copy_blocks.size() / 2, 2);
          },
          "[c, 2] cache blocks (from, to) to copy before the rows are computed.")
      .def_prop_ro(
          "copy_slots",
          [](nb::handle self) {
            const StepPlan& p = plan_of(self);
            return array_view(p.copy_slots.data(), self, p.copy_slots.size() / 2, 2);
          },
          "[d, 2] state slots (from, to) to copy before the rows are computed.")
      .def_prop_ro("copy_ids", &array_of<&StepPlan::copy_ids>,
                   "[d] the sequences that `copy_slots` are for, with or without rows in this plan.")
      .def_prop_ro("preempted", &array_of<&StepPlan::preempted>,
                   "[p] ids of the sequences that lost their cache since the last plan, in that order.")
      .def_prop_ro("expired", &array_of<&StepPlan::expired>,
                   "[e] ids of the sequences that a deadline or a lease has ended since the last plan.")
      .def(
          "resolve",
          [](const PlanHandle& self, const ArrayView<Token>& tokens, const ArrayView<std::int32_t>& counts,
             const OptionalRows<Token>& drafts, const OptionalRows<float>& confidences) {
            return resolve_plan(self, as_outcome(tokens, counts, drafts, confidences));
          },
          nb::arg("tokens").noconvert(), nb::arg("counts").noconvert(),
          nb::arg("drafts").noconvert().none() = nb::none(),
          nb::arg("confidences").noconvert().none() = nb::none(),
          "The plan that is computed, from what the step before gave: the arrays that its commit gets.\n\n"
          "A function of these arrays and this plan alone, so that a device thread can call it; this plan "
          "stays\n"
          "as it is. Raises ValueError for arrays that cannot be of that step, TypeError for a wrong dtype, "
          "rank\n"
          "or layout.")
      .def(
          "after", [](const PlanHandle& self, const PlanHandle& earlier) { return self.after(earlier); },
          "earlier"_a,
          "This plan, with what an empty plan made just before it says of `preempted` and `expired`.");
}

void bind_commit_result(nb::module_& m) {
  nb::class_<CommitResult>(m, "CommitResult",
                           "What became of the n sampling sequences of a (resolved) plan, in plan order.")
      .def_prop_ro("seq_ids", &result_array<&CommitResult::seq_ids>, "[n]")
      .def_prop_ro("num_committed", &result_array<&CommitResult::num_committed>,
                   "[n] tokens kept, counted from the front of those offered; 0 if it failed or had ended "
                   "meanwhile.")
      .def_prop_ro("finish", &result_array<&CommitResult::finish>,
                   "[n] a `FinishReason`; NONE while the sequence goes on.")
      .def_prop_ro(
          "ends",
          [](const CommitResult& self) {
            nb::list rows;
            for (std::size_t i = 0; i < self.seq_ids.size(); ++i) {
              rows.append(nb::make_tuple(self.seq_ids[i], self.num_committed[i], self.finish[i]));
            }
            return rows;
          },
          "`(seq_id, num_committed, finish)` of each, as numbers: the quickest way to all of them.")
      .def_prop_ro("first_token_wait", &result_array<&CommitResult::first_token_wait>,
                   "[n] time from arrival to the first token, where this is it; else NaN.");
}

}  // namespace di::scheduler
