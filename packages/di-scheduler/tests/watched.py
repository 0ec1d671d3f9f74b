"""A native scheduler, what the outside world was told of it, and properties that are checked at every operation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from di_scheduler import (
    CommitResult,
    EngineKind,
    FinishReason,
    Scheduler,
    SchedulerConfig,
    SequenceLimits,
    SequenceOptions,
    SequenceState,
    StepKind,
    StepPlan,
)
from di_scheduler.cost_curve import CostCurve
from di_scheduler.speculation import DraftBudget
from numpy.typing import NDArray

from .model_state import Results
from .observation import Ghost, Observation, Pinned, Request, Rows, Step, queue_before, rows_of
from .properties import ALWAYS
from .properties_plan import AFTER_PLAN, check_failures, check_resolved

PLAIN = SequenceOptions()


def int32(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)


@dataclass(frozen=True)
class Checks:
    """Which properties are looked at; by default all."""

    always: Mapping[str, Callable[[Observation], None]]
    after_plan: Mapping[str, Callable[[Observation, Step], None]]
    resolved: bool = True
    failures: bool = True


ALL = Checks(ALWAYS, AFTER_PLAN)


class Watched:
    def __init__(self, config: SchedulerConfig, checks: Checks = ALL) -> None:
        self.config = config
        self.checks = checks
        self.scheduler = Scheduler(config)
        self.seen = Observation(config, self.scheduler, self.scheduler.stats())
        self.tickets: list[tuple[int, float, Request]] = []  # (ticket, lease, whose), never removed
        self.costed = False
        self.orders = 0

    # What a subclass compares with.

    def planned(self, plan: StepPlan, now: float, kind: StepKind) -> None:
        """Called with every new plan, before anything is concluded from it."""

    def committed(
        self, results: Results, result: CommitResult, resolved: StepPlan | None, now: float
    ) -> None:
        """Called with what a commit gave, and the plan that it resolved."""

    # Life of a request.

    def enter(
        self,
        seq_id: int,
        prompt: list[int],
        limits: SequenceLimits,
        options: SequenceOptions,
        family: int | None = None,
    ) -> Request:
        own = self.orders if family is None else family
        request = Request(seq_id, prompt, limits, options, self.orders, own, ready=options.ready)
        self.orders += 1
        self.seen.live[seq_id] = request
        return request

    def add(
        self,
        seq_id: int,
        prompt: list[int],
        limits: SequenceLimits,
        arrival: float = 0.0,
        options: SequenceOptions = PLAIN,
    ) -> None:
        self.scheduler.add(seq_id, int32(prompt), limits, arrival, options)
        self.enter(seq_id, prompt, limits, options)
        self.check()

    def set_ready(self, seq_id: int) -> bool:
        request = self.seen.live.get(seq_id)
        was_waiting = request is not None and not request.ready
        assert self.scheduler.set_ready(seq_id) == was_waiting
        if request is not None:
            request.ready = True
        self.check()
        return was_waiting

    def finish(self, seq_id: int, reason: FinishReason = FinishReason.ABORT) -> bool:
        request = self.seen.live.get(seq_id)
        ended = self.scheduler.finish(seq_id, reason)
        assert ended == (request is not None)
        if request is not None:
            self.end(request, reason)
        self.check()
        return ended

    def fork(
        self,
        parent_id: int,
        seq_id: int,
        num_tokens: int,
        limits: SequenceLimits,
        arrival: float = 0.0,
        options: SequenceOptions = PLAIN,
    ) -> bool:
        parent = self.seen.live[parent_id]
        shares = self.scheduler.fork(parent_id, seq_id, num_tokens, limits, arrival, options)
        child = self.enter(seq_id, parent.tokens[:num_tokens], limits, options, parent.family)
        if shares:
            child.computed = child.reach = min(parent.computed, num_tokens - 1)
            self._record_copies(parent_id, child)
        self.check()
        return shares

    def _record_copies(self, parent_id: int, child: Request) -> None:
        mine, theirs = self.scheduler.describe(child.seq_id), self.scheduler.describe(parent_id)
        shared, tail = divmod(child.computed, self.config.block_size)
        table, parent_table = mine.block_table.tolist(), theirs.block_table.tolist()
        assert table[:shared] == parent_table[:shared]
        assert len(table) == shared + (tail > 0)
        blocks = [(parent_table[shared], table[shared])] if tail else []
        self.seen.pinned.append(Pinned(child, blocks, (theirs.slot, mine.slot)))

    def end(self, request: Request, reason: FinishReason) -> None:
        seen = self.seen
        seen.untold = [seq_id for seq_id in seen.untold if seq_id != request.seq_id]
        del seen.live[request.seq_id]
        request.finishes.append(reason)
        seen.aborted += reason is FinishReason.ABORT
        seen.preempted += reason is FinishReason.PREEMPTED
        seen.ended.append(request)
        info = seen.infos.get(request.seq_id)
        if request.held_up and info is not None and info.slot:
            seen.ghosts.append(Ghost(request, info.block_table.tolist(), info.slot))
        self._drop_copies(request)

    def _drop_copies(self, child: Request) -> None:
        self.seen.pinned = [pin for pin in self.seen.pinned if pin.child is not child]

    def _restart(self, request: Request) -> None:
        request.computed = request.reach = 0
        self._drop_copies(request)

    def _compute_again(self, request: Request) -> None:
        """An import that failed starts over, and is told of like one that was preempted."""
        request.preemptions += 1
        self.seen.untold.append(request.seq_id)
        self.seen.preempted += 1
        self._restart(request)

    # Hand-over.

    def begin_transfer(self, seq_id: int, expires: float) -> int:
        """The number of the transfer in `tickets`."""
        ticket = self.scheduler.begin_transfer(seq_id, expires)
        return self._open_transfer(ticket, expires, self.seen.live[seq_id])

    def _open_transfer(self, ticket: int, expires: float, request: Request) -> int:
        assert ticket not in [known for known, _, _ in self.tickets]
        self.tickets.append((ticket, expires, request))
        request.tickets.add(ticket)
        self.check()
        return len(self.tickets) - 1

    def import_sequence(
        self,
        seq_id: int,
        tokens: list[int],
        prompt_len: int,
        limits: SequenceLimits,
        expires: float,
        options: SequenceOptions = PLAIN,
    ) -> int | None:
        ticket = self.scheduler.import_sequence(
            seq_id, int32(tokens), prompt_len, limits, expires, options=options
        )
        if ticket is None:
            self.check()
            return None
        request = self.enter(seq_id, tokens[:prompt_len], limits, options)
        request.delivered = tokens[prompt_len:]
        request.reach = len(tokens) - 1
        request.ready = True
        return self._open_transfer(ticket, expires, request)

    def end_transfer(self, number: int, ok: bool) -> bool:
        ticket, _, request = self.tickets[number]
        was_open = ticket in request.tickets
        assert self.scheduler.end_transfer(ticket, ok) == was_open
        request.tickets.discard(ticket)
        if was_open and not request.finishes:
            self._landed(request, ok)
        self.check()
        return was_open

    def _landed(self, request: Request, ok: bool) -> None:
        incoming = self.seen.infos[request.seq_id].state == SequenceState.RECEIVING
        if not incoming:
            self.end(request, FinishReason.HANDED_OVER if ok else FinishReason.ERROR)
        elif ok:
            request.computed = len(request.tokens) - 1
        elif self.config.kind is EngineKind.DECODE_ONLY:
            self.end(request, FinishReason.ERROR)
        else:
            self._compute_again(request)

    # Steps.

    def set_step_cost(self, curve: CostCurve | None) -> None:
        self.scheduler.set_step_cost(None if curve is None else DraftBudget(curve))
        self.costed = curve is not None
        self.check()

    def make_plan(self, now: float = 0.0, kind: StepKind = StepKind.ANY) -> Step:
        seen = self.seen
        seen.before = seen.snapshot()
        plan = self.scheduler.plan(now, kind)
        self.planned(plan, now, kind)
        self._expire(plan, now)
        self._note_preemptions(plan)
        step = Step(plan, kind, rows_of(plan, seen.live))
        for rows in step.groups:
            rows.request.rows_in_flight.append(rows)
            rows.request.reach = max(rows.request.reach, self._reach(rows))
        if step.groups:
            seen.copying.append(seen.pinned)
            for pin in seen.pinned:
                pin.child.copies += 1
            seen.pinned = []
            seen.steps.append(step)
        self.check()
        self._count_overtakes()
        if step.groups:
            seen.steps.pop()
        for check in self.checks.after_plan.values():
            check(seen, step)
        if step.groups:
            step.remember()
            seen.steps.append(step)
        return step

    def _reach(self, rows: Rows) -> int:
        """The end of what these rows may write, whatever the open plan yields."""
        if rows.source < 0:
            return rows.end
        more = self.seen.steps[-1].sampling[rows.source].most_tokens - 1
        if not self.costed:
            return rows.end + more
        return rows.start + more + 1 + self.config.max_draft_tokens  # drafts are distributed again

    def _count_overtakes(self) -> None:
        seen = self.seen
        assert seen.before is not None
        for admitted in [seen.live[i] for i in seen.running if i in seen.before.waiting]:
            for other in queue_before(seen, admitted):
                other.overtaken += not other.ready

    def _expire(self, plan: StepPlan, now: float) -> None:
        for seq_id in plan.expired.tolist():
            request = self.seen.live[seq_id]
            deadline = request.options.deadline
            late = deadline is not None and deadline <= now
            if not late:
                request.tickets.clear()
            self.end(request, FinishReason.DEADLINE if late else FinishReason.ERROR)
        for ticket, expires, request in self.tickets:
            if ticket in request.tickets and expires <= now:
                request.tickets.discard(ticket)
                assert not self.scheduler.end_transfer(ticket)
                if not request.finishes:
                    self._compute_again(request)

    def _note_preemptions(self, plan: StepPlan | None = None) -> None:
        """Whose number of preemptions has grown has lost its cache; the next plan tells."""
        seen = self.seen
        if plan is not None and self.config.kind is EngineKind.DECODE_ONLY:
            for seq_id in plan.preempted.tolist():
                info = self.scheduler.describe(seq_id) if seq_id in seen.live else None
                if (
                    info is not None and info.state == SequenceState.FINISHED
                ):  # else one that had the id before
                    self.end(seen.live[seq_id], FinishReason.PREEMPTED)
                    seen.untold.append(seq_id)
        elif self.scheduler.stats().preemptions != seen.stats.preemptions:
            for seq_id, request in seen.live.items():
                count = self.scheduler.describe(seq_id).num_preemptions
                if count > request.preemptions:
                    request.preemptions = count
                    seen.untold.append(seq_id)
                    seen.preempted += 1
                    self._restart(request)
        if plan is not None:
            assert sorted(plan.preempted.tolist()) == sorted(seen.untold)
            seen.untold = []

    def commit(self, results: Results, now: float = 0.0) -> CommitResult:
        """Take in results for the sampling sequences of the oldest open plan."""
        seen = self.seen
        step = seen.steps[0]
        following = seen.steps[1] if len(seen.steps) > 1 else None
        tokens, counts, failed, drafts, confidences = self.arrays(results)
        resolved = None
        if following is not None:
            resolved = following.plan.resolve(tokens, counts, drafts, confidences)
        result = self.scheduler.commit(tokens, counts, failed, drafts, confidences, now)
        self.committed(results, result, resolved, now)
        if following is not None and resolved is not None:
            self._resolve(step, results, following, resolved)
        seen.steps.pop(0)
        for pin in seen.copying.pop(0):
            pin.child.copies -= 1
        self._deliver(step, results, result)
        self._note_preemptions()
        self.check()
        return result

    def arrays(
        self, results: Results
    ) -> tuple[
        NDArray[np.int32],
        NDArray[np.int32],
        NDArray[np.bool_] | None,
        NDArray[np.int32] | None,
        NDArray[np.float32] | None,
    ]:
        """Tokens, counts, failed, drafts, confidences; what says nothing is left out."""
        offers, width = results.offers, self.config.max_draft_tokens
        tokens = int32([token for offer in offers for token in offer])
        counts = int32([len(offer) for offer in offers])
        failed = np.array(results.failed, np.bool_) if any(results.failed) else None
        drafts = confidences = None
        if any(results.drafts):
            drafts = np.full((len(offers), width), -1, np.int32)
            for i, row in enumerate(results.drafts):
                drafts[i, : len(row)] = row
        if any(value != 1 for row in results.confidences for value in row):
            confidences = np.zeros((len(offers), width), np.float32)
            for i, values in enumerate(results.confidences):
                confidences[i, : len(values)] = values
        return tokens, counts, failed, drafts, confidences

    def _resolve(self, step: Step, results: Results, following: Step, resolved: StepPlan) -> None:
        """The second plan, now that the first one's results are known; nothing of them is delivered yet."""
        before = following.groups
        groups = rows_of(resolved, {rows.request.seq_id: rows.request for rows in before})
        sources = {rows.request: step.sampling[rows.source] for rows in before if rows.source >= 0}
        offers = dict(zip(step.sampling, results.offers, strict=True))
        if self.checks.resolved:
            check_resolved(self.seen, before, groups, sources, offers)
        for rows in before:
            rows.request.rows_in_flight.remove(rows)
        for rows in groups:
            rows.request.rows_in_flight.append(rows)
        following.plan, following.groups = resolved, groups
        following.remember()

    def _deliver(self, step: Step, results: Results, result: CommitResult) -> None:
        for rows in step.groups:
            rows.request.rows_in_flight.remove(rows)
            if not rows.request.finishes:
                rows.request.computed = rows.end
        before = {r.request: len(r.request.delivered) for r in step.sampling if not r.request.finishes}
        broken = []
        outcomes = zip(
            step.sampling,
            results.offers,
            results.failed,
            result.num_committed.tolist(),
            result.finish.tolist(),
            strict=True,
        )
        for rows, offer, failed, kept, finish in outcomes:
            request = rows.request
            if request.finishes:
                assert (kept, finish) == (0, request.finishes[0])
                continue
            if failed or not 1 <= len(offer) <= rows.most_tokens or min(offer) < 0:
                broken.append(request)
            request.delivered += offer[:kept]
            self.seen.kept += kept
            request.computed = len(request.tokens) - 1
            if finish:
                self.end(request, FinishReason(finish))
            if finish == FinishReason.PREEMPTED:
                self.seen.untold.append(request.seq_id)
        if self.checks.failures:
            check_failures(before, broken)

    def plain(self, tokens: list[int]) -> Results:
        """Results with one token each, without drafts."""
        return Results(
            [[t] for t in tokens], [False] * len(tokens), [[] for _ in tokens], [[] for _ in tokens]
        )

    def check(self) -> None:
        seen = self.seen
        seen.look()
        seen.ghosts = [ghost for ghost in seen.ghosts if ghost.request.held_up]
        for check in self.checks.always.values():
            check(seen)
