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

nb::object flags(const std::vector<std::uint8_t>& values, nb::handle owner) {
  static_assert(sizeof(bool) == 1);
  return array_view(reinterpret_cast<const bool*>(values.data()), owner, values.size());
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
          "num_seqs",
          [](const PlanHandle& self) {
            const StepPlan& plan = *self.plan;
            return plan.num_seqs();
          },
          "S; 0 when there is nothing to do.")
      .def_prop_ro(
          "num_rows",
          [](const PlanHandle& self) {
            const StepPlan& plan = *self.plan;
            return plan.token_ids.size();
          },
          "R, at most `max_num_batched_tokens`.")
      .def_prop_ro(
          "seq_ids",
          [](nb::handle self) {
            const StepPlan& p = plan_of(self);
            return array_view(p.seq_ids, self);
          },
          "[S] in the order of the rows.")
      .def_prop_ro(
          "q_start",
          [](nb::handle self) {
            const StepPlan& p = plan_of(self);
            return array_view(p.q_start, self);
          },
          "[S] first position computed; positions before it are in the cache.")
      .def_prop_ro(
          "q_len",
          [](nb::handle self) {
            const StepPlan& p = plan_of(self);
            return array_view(p.q_len, self);
          },
          "[S] positions computed, at least 1.")
      .def_prop_ro(
          "row_start",
          [](nb::handle self) {
            const StepPlan& p = plan_of(self);
            return array_view(p.row_start, self);
          },
          "[S + 1] first row of each sequence: exclusive prefix sums of `q_len`.")
      .def_prop_ro(
          "token_ids",
          [](nb::handle self) {
            const StepPlan& p = plan_of(self);
            return array_view(p.token_ids, self);
          },
          "[R] input token of each row.")
      .def_prop_ro(
          "positions",
          [](nb::handle self) {
            const StepPlan& p = plan_of(self);
            return array_view(p.positions, self);
          },
          "[R] position of each row in its sequence.")
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
      .def_prop_ro(
          "slots",
          [](nb::handle self) {
            const StepPlan& p = plan_of(self);
            return array_view(p.slots, self);
          },
          "[S] state slot of each sequence.")
      .def_prop_ro(
          "samples",
          [](nb::handle self) {
            const StepPlan& p = plan_of(self);
            return flags(p.samples, self);
          },
          "[S] whether the last row of the sequence yields a token.")
      .def_prop_ro(
          "sampling",
          [](nb::handle self) {
            const StepPlan& p = plan_of(self);
            return array_view(p.sampling, self);
          },
          "[n] indices into S where `samples` is true, ascending.")
      .def_prop_ro(
          "decodes",
          [](nb::handle self) {
            const StepPlan& p = plan_of(self);
            return flags(p.decodes, self);
          },
          "[S] whether it is a decode: one row, and drafts in the rows behind it.")
      .def_prop_ro(
          "source",
          [](nb::handle self) {
            const StepPlan& p = plan_of(self);
            return array_view(p.source, self);
          },
          "[S] index into the `sampling` of the open plan whose token this sequence waits for, "
          "or -1.")
      .def_prop_ro(
          "prompt_len",
          [](nb::handle self) {
            const StepPlan& p = plan_of(self);
            return array_view(p.prompt_len, self);
          },
          "[S] prompt tokens.")
      .def_prop_ro(
          "output_len",
          [](nb::handle self) {
            const StepPlan& p = plan_of(self);
            return array_view(p.output_len, self);
          },
          "[S] generated tokens before this step.")
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
      .def_prop_ro(
          "preempted",
          [](nb::handle self) {
            const StepPlan& p = plan_of(self);
            return array_view(p.preempted, self);
          },
          "[p] ids of the sequences that lost their cache since the last plan, in that order.")
      .def_prop_ro(
          "expired",
          [](nb::handle self) {
            const StepPlan& p = plan_of(self);
            return array_view(p.expired, self);
          },
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
      .def_prop_ro(
          "seq_ids",
          [](nb::handle self) { return array_view(nb::cast<const CommitResult&>(self).seq_ids, self); },
          "[n]")
      .def_prop_ro(
          "num_committed",
          [](nb::handle self) { return array_view(nb::cast<const CommitResult&>(self).num_committed, self); },
          "[n] tokens kept, counted from the front of those offered; 0 if it failed or had ended "
          "meanwhile.")
      .def_prop_ro(
          "finish",
          [](nb::handle self) { return array_view(nb::cast<const CommitResult&>(self).finish, self); },
          "[n] a `FinishReason`; NONE while the sequence goes on.")
      .def_prop_ro(
          "first_token_wait",
          [](nb::handle self) {
            return array_view(nb::cast<const CommitResult&>(self).first_token_wait, self);
          },
          "[n] time from arrival to the first token, where this is it; else NaN.");
}

}  // namespace di::scheduler
