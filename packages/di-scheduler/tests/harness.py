"""Drives the native scheduler and its Python model together, comparing them and checking the properties."""

from collections.abc import Callable, Sequence

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
    StepPolicy,
)
from di_scheduler.cost_curve import CostCurve
from di_scheduler.speculation import DraftBudget
from numpy.typing import NDArray

from .compare import compare_plan, compare_result, compare_sequences, compare_stats
from .model import ModelScheduler
from .model_state import Results
from .observation import Ghost, Observation, Pinned, Request, Rows, Step
from .properties import ALWAYS
from .properties_plan import AFTER_PLAN, check_failures, check_resolved, queue_before

PLAIN = SequenceOptions()


def int32(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)


class Lockstep:
    """One native scheduler, one model of it, and a record of what the outside world was told."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.scheduler = Scheduler(config)
        self.model = ModelScheduler(config)
        self.seen = Observation(config, self.scheduler, self.scheduler.stats())
        self.tickets: list[tuple[int, int, Request]] = []  # (native, model, whose), never removed
        self.orders = 0

    # Life of a request.

    def _enter(
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
        self.model.add(seq_id, prompt, limits, arrival, options)
        self._enter(seq_id, prompt, limits, options)
        self.check()

    def set_ready(self, seq_id: int) -> bool:
        request = self.seen.live.get(seq_id)
        was_waiting = request is not None and not request.ready
        assert self.scheduler.set_ready(seq_id) == self.model.set_ready(seq_id) == was_waiting
        if request is not None:
            request.ready = True
        self.check()
        return was_waiting

    def finish(self, seq_id: int, reason: FinishReason = FinishReason.ABORT) -> bool:
        request = self.seen.live.get(seq_id)
        ended = self.scheduler.finish(seq_id, reason)
        assert ended == self.model.finish(seq_id, reason) == (request is not None)
        if request is not None:
            self._end(request, reason)
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
        assert shares == self.model.fork(parent_id, seq_id, num_tokens, limits, arrival, options)
        child = self._enter(seq_id, parent.tokens[:num_tokens], limits, options, parent.family)
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

    def _end(self, request: Request, reason: FinishReason) -> None:
        seen = self.seen
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
        request.restarted = True
        self._drop_copies(request)

    # Hand-over.

    def begin_transfer(self, seq_id: int, expires: float) -> int:
        """The number of the transfer in `tickets`."""
        native = self.scheduler.begin_transfer(seq_id, expires)
        model = self.model.begin_transfer(seq_id, expires)
        return self._open_transfer(native, model, self.seen.live[seq_id])

    def _open_transfer(self, native: int, model: int, request: Request) -> int:
        assert native not in [ticket for ticket, _, _ in self.tickets]
        self.tickets.append((native, model, request))
        request.tickets.add(native)
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
        native = self.scheduler.import_sequence(
            seq_id, int32(tokens), prompt_len, limits, expires, options=options
        )
        model = self.model.import_sequence(seq_id, tokens, prompt_len, limits, expires, options=options)
        assert (native is None) == (model is None)
        if native is None or model is None:
            self.check()
            return None
        request = self._enter(seq_id, tokens[:prompt_len], limits, options)
        request.delivered = tokens[prompt_len:]
        request.reach = len(tokens) - 1
        request.ready = True
        return self._open_transfer(native, model, request)

    def end_transfer(self, number: int, ok: bool) -> bool:
        native, model, request = self.tickets[number]
        was_open = native in request.tickets
        assert self.scheduler.end_transfer(native, ok) == self.model.end_transfer(model, ok) == was_open
        request.tickets.discard(native)
        if was_open and not request.finishes:
            self._landed(request, ok)
        self.check()
        return was_open

    def _landed(self, request: Request, ok: bool) -> None:
        incoming = self.seen.infos[request.seq_id].state == SequenceState.RECEIVING
        if not incoming:
            self._end(request, FinishReason.HANDED_OVER if ok else FinishReason.ERROR)
        elif ok:
            request.computed = len(request.tokens) - 1
        elif self.config.kind is EngineKind.DECODE_ONLY:
            self._end(request, FinishReason.ERROR)
        else:
            self._compute_again(request)

    # Steps.

    def set_step_cost(self, curve: CostCurve | None) -> None:
        """Of a curve that is one straight line."""
        self.scheduler.set_step_cost(None if curve is None else DraftBudget(curve))
        self.model.core.cost = None
        if curve is not None:
            (first, last), (low, high) = curve.sizes, curve.milliseconds
            per_row = (high - low) / (last - first)
            self.model.core.cost = lambda rows, _: low + per_row * (rows - first)
        self.check()

    def make_plan(self, now: float = 0.0, kind: StepKind = StepKind.ANY) -> Step:
        seen = self.seen
        seen.before = seen.snapshot()
        wanted = (self.scheduler.wants_prefill(), self.scheduler.has_decodes())
        assert wanted == (self.model.wants_prefill(), self.model.has_decodes())
        plan = self.scheduler.plan(now, kind)
        model_plan = self.model.plan(now, kind)
        compare_plan(plan, model_plan)
        self._expire(plan, now)
        self._note_preemptions(plan)
        step = Step(plan, kind, [], resolved=not (plan.source >= 0).any())
        step.groups = self._rows(plan)
        for rows in step.groups:
            rows.request.rows_in_flight.append(rows)
            rows.request.reach = max(rows.request.reach, self._reach(rows))
        if step.groups:
            seen.copying.append(seen.pinned)
            for pin in seen.pinned:
                pin.child.copies += 1
            seen.pinned = []
        self.check(planning=step)
        self._count_overtakes()
        for check in AFTER_PLAN.values():
            check(seen, step)
        if step.groups:
            step.bytes_at_birth = remembered(plan)
            seen.steps.append(step)
        return step

    def _count_overtakes(self) -> None:
        seen = self.seen
        assert seen.before is not None
        for admitted in [seen.live[i] for i in seen.running if i in seen.before.waiting]:
            for other in queue_before(seen, admitted):
                other.overtaken += not other.ready

    def _reach(self, rows: Rows) -> int:
        """The end of what these rows may write, whatever the open plan yields."""
        if rows.source < 0:
            return rows.end
        more = self.seen.steps[-1].sampling[rows.source].most_tokens - 1
        if self.model.core.cost is None:
            return rows.end + more
        return rows.start + more + 1 + self.config.max_draft_tokens  # drafts are distributed again

    def _rows(self, plan: StepPlan) -> list[Rows]:
        table = plan.block_table.tolist()
        ends = plan.row_start.tolist()
        tokens, positions = plan.token_ids.tolist(), plan.positions.tolist()
        columns = (
            plan.seq_ids.tolist(),
            plan.q_start.tolist(),
            plan.q_len.tolist(),
            plan.decodes.tolist(),
            plan.samples.tolist(),
            plan.source.tolist(),
            plan.slots.tolist(),
            plan.context.tolist(),
            plan.prompt_len.tolist(),
            plan.output_len.tolist(),
            plan.params.tolist(),
        )
        groups = []
        for i, (
            seq_id,
            start,
            count,
            decode,
            samples,
            source,
            slot,
            context,
            prompt,
            output,
            params,
        ) in enumerate(zip(*columns, strict=True)):
            inside = slice(ends[i], ends[i + 1])
            groups.append(
                Rows(
                    self.seen.live[seq_id],
                    start,
                    count,
                    decode,
                    samples,
                    source,
                    [block for block in table[i] if block],
                    slot,
                    tokens[inside],
                    positions[inside],
                    context,
                    prompt,
                    output,
                    tuple(params),
                )
            )
        return groups

    def _expire(self, plan: StepPlan, now: float) -> None:
        for seq_id in plan.expired.tolist():
            request = self.seen.live[seq_id]
            deadline = request.options.deadline
            late = deadline is not None and deadline <= now
            if not late:
                request.tickets.clear()
            self._end(request, FinishReason.DEADLINE if late else FinishReason.ERROR)
        for native, model, request in self.tickets:
            if native in request.tickets and model not in self.model.core.transfers:
                request.tickets.discard(native)
                assert not self.scheduler.end_transfer(native)
                if not request.finishes:
                    self._compute_again(request)

    def _compute_again(self, request: Request) -> None:
        """An import that failed: it starts over, which is not a preemption."""
        request.preemptions += 1
        self._restart(request)

    def _note_preemptions(self, plan: StepPlan | None = None) -> None:
        """Whose number of preemptions has grown has lost its cache; the next plan tells."""
        seen = self.seen
        if plan is not None and self.config.kind is EngineKind.DECODE_ONLY:
            for seq_id in plan.preempted.tolist()[len(seen.untold) :]:
                seen.untold.append(seq_id)
                self._end(seen.live[seq_id], FinishReason.PREEMPTED)
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
        arrays = self.arrays(results)
        following = seen.steps[1] if len(seen.steps) > 1 else None
        resolved = None
        if following is not None:
            resolved = following.plan.resolve(arrays[0], arrays[1], arrays[3], arrays[4])
        result = self.scheduler.commit(*arrays, now=now)
        outcomes = self.model.commit(results, now)
        compare_result(result, outcomes)
        self._resolved(step, results, following, resolved)
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

    def _resolved(
        self, step: Step, results: Results, following: Step | None, resolved: StepPlan | None
    ) -> None:
        """The second plan, now that the first one's results are known; nothing of them is delivered yet."""
        if following is None or resolved is None:
            return
        compare_plan(resolved, self.model.core.open_plans[0], resolved=True)
        before = following.groups
        alive = {rows.request.seq_id: rows.request for rows in before}
        live, self.seen.live = self.seen.live, alive
        groups = self._rows(resolved)
        self.seen.live = live
        sources = {rows.request: step.sampling[rows.source] for rows in before if rows.source >= 0}
        check_resolved(
            self.seen, before, groups, sources, dict(zip(step.sampling, results.offers, strict=True))
        )
        for rows in before:
            rows.request.rows_in_flight.remove(rows)
        for rows in groups:
            rows.request.rows_in_flight.append(rows)
        following.plan, following.groups, following.resolved = resolved, groups, True
        following.bytes_at_birth = remembered(resolved)

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
                self._end(request, FinishReason(finish))
            if finish == FinishReason.PREEMPTED:
                self.seen.untold.append(request.seq_id)
        check_failures(before, broken)

    def plain(self, tokens: list[int]) -> Results:
        """Results with one token each, without drafts."""
        return Results(
            [[t] for t in tokens], [False] * len(tokens), [[] for _ in tokens], [[] for _ in tokens]
        )

    def step(self, next_token: Callable[[list[int]], int], now: float = 0.0) -> None:
        """Plan and commit; the next token is a function of all tokens before it."""
        step = self.make_plan(now)
        if step.groups:
            self.commit(self.plain([next_token(rows.request.tokens) for rows in step.sampling]), now)

    def check(self, planning: Step | None = None) -> None:
        seen = self.seen
        seen.look()
        seen.ghosts = [ghost for ghost in seen.ghosts if ghost.request.held_up]
        if planning is not None and planning.groups:
            seen.steps.append(planning)
        for check in ALWAYS.values():
            check(seen)
        if planning is not None and planning.groups:
            seen.steps.pop()
        compare_stats(seen.stats, self.model)
        compare_sequences(seen.infos, self.model)


def remembered(plan: StepPlan) -> dict[str, bytes]:
    return {name: getattr(plan, name).tobytes() for name in ("token_ids", "block_table", "seq_ids")}


def small_config(
    *,
    blocks: int = 6,
    block_size: int = 4,
    seqs: int = 4,
    budget: int = 16,
    chunk: int | None = None,
    model_len: int = 64,
    lookback: int = 3,
    drafts: int = 0,
    flights: int = 1,
    policy: StepPolicy = StepPolicy.MIXED,
    kind: EngineKind = EngineKind.NORMAL,
) -> SchedulerConfig:
    """A configuration in which blocks run short soon. `blocks` counts the usable ones."""
    return SchedulerConfig(
        num_blocks=blocks + 1,
        num_slots=seqs + 1,
        block_size=block_size,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        max_chunk_tokens=chunk,
        max_model_len=model_len,
        max_draft_tokens=drafts,
        max_steps_in_flight=flights,
        lookback=lookback,
        policy=policy,
        kind=kind,
    )
