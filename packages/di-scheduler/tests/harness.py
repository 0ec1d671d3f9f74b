"""Drives the native scheduler and its Python model together, comparing them and checking the properties."""

from collections.abc import Callable, Sequence

import numpy as np
from di_scheduler import (
    CommitResult,
    FinishReason,
    Scheduler,
    SchedulerConfig,
    SchedulerStats,
    SequenceLimits,
    StepPlan,
    StepPolicy,
)

from .model import ModelScheduler, Piece
from .properties import AFTER_PLAN, ALWAYS, Observation, Request


def int32(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.int32)


class Lockstep:
    """One native scheduler, one model of it, and a record of what the outside world was told."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.scheduler = Scheduler(config)
        self.model = ModelScheduler(config)
        self.plan: StepPlan | None = None
        self.seen = Observation(config, self.scheduler, live={}, ended=[], in_flight_ended=[])
        self.planned: list[Request] = []  # by row group of the open plan
        self.added = 0

    def add(self, seq_id: int, prompt: list[int], limits: SequenceLimits) -> None:
        self.scheduler.add(seq_id, int32(prompt), limits)
        self.model.add(seq_id, prompt, limits)
        self.seen.live[seq_id] = Request(prompt, limits, order=self.added)
        self.added += 1
        self.check()

    def finish(self, seq_id: int, reason: FinishReason = FinishReason.ABORT) -> bool:
        in_flight = self.plan is not None and self.seen.live.get(seq_id) in self.planned
        if in_flight:
            self.seen.in_flight_ended.append(self.scheduler.describe(seq_id))
        ended = self.scheduler.finish(seq_id, reason)
        assert ended == self.model.finish(seq_id, reason) == (seq_id in self.seen.live)
        if ended:
            self._end(seq_id, reason)
        self.check()
        return ended

    def make_plan(self) -> StepPlan:
        self.seen.free_before = self.scheduler.stats().free_blocks
        running = self.scheduler.running_ids().tolist()
        self.seen.held_before = {i: len(self.scheduler.describe(i).block_table) for i in running}
        plan = self.scheduler.plan()
        pieces, preempted = self.model.plan()
        compare_plan(plan, pieces, preempted)
        for seq_id in preempted:
            self.seen.live[seq_id].rows_seen = 0
            self.seen.live[seq_id].preemptions += 1
        self.check()
        for check in AFTER_PLAN.values():
            check(self.seen, plan)
        self.plan = plan
        self.planned = [self.seen.live[seq_id] for seq_id in plan.seq_ids.tolist()]
        return plan

    def commit(self, offers: list[list[int]], failed: list[bool] | None = None) -> CommitResult:
        """`offers[i]`: the tokens for the i-th sampling sequence of the open plan."""
        assert self.plan is not None
        tokens = int32([token for offer in offers for token in offer])
        counts = int32([len(offer) for offer in offers])
        flags = None if failed is None else np.array(failed, np.bool_)
        result = self.scheduler.commit(tokens, counts, flags)
        ids, kept, finish = self.model.commit(offers, failed or [False] * len(offers))
        assert result.seq_ids.tolist() == ids
        assert result.num_committed.tolist() == kept
        assert result.finish.tolist() == finish
        self._deliver(self.plan, result, offers)
        self.plan, self.planned, self.seen.in_flight_ended = None, [], []
        self.check()
        return result

    def step(self, next_token: Callable[[list[int]], int]) -> CommitResult:
        """Plan and commit; the next token is a function of all tokens before it."""
        plan = self.make_plan()
        requests = [self.planned[i] for i in plan.sampling.tolist()]
        return self.commit([[next_token(r.prompt + r.delivered)] for r in requests])

    def check(self) -> None:
        for check in ALWAYS.values():
            check(self.seen)
        compare_stats(self.scheduler.stats(), self.model)
        assert self.scheduler.has_unfinished() == bool(self.seen.live or self.model.step)
        for sequence in self.model.waiting + self.model.running:
            info = self.scheduler.describe(sequence.seq_id)
            assert info.block_table.tolist() == sequence.blocks
            assert info.num_computed == sequence.computed
            assert info.num_preemptions == sequence.preemptions

    def _deliver(self, plan: StepPlan, result: CommitResult, offers: list[list[int]]) -> None:
        for request, start, rows in zip(self.planned, plan.q_start, plan.q_len, strict=True):
            request.rows_seen = int(start + rows)
        outcomes = zip(
            plan.sampling.tolist(), offers, result.num_committed.tolist(), result.finish.tolist(), strict=True
        )
        for i, offer, kept, finish in outcomes:
            request, seq_id = self.planned[i], int(plan.seq_ids[i])
            request.delivered += offer[:kept]
            request.rows_seen = min(request.rows_seen, len(request.prompt) + len(request.delivered) - 1)
            if finish and not request.finishes:
                self._end(seq_id, FinishReason(finish))

    def _end(self, seq_id: int, reason: FinishReason) -> None:
        request = self.seen.live.pop(seq_id)
        request.finishes.append(reason)
        self.seen.ended.append(request)


def compare_plan(plan: StepPlan, pieces: list[Piece], preempted: list[int]) -> None:
    assert plan.seq_ids.tolist() == [p.sequence.seq_id for p in pieces]
    assert plan.q_start.tolist() == [p.start for p in pieces]
    assert plan.q_len.tolist() == [p.rows for p in pieces]
    assert plan.samples.tolist() == [p.samples for p in pieces]
    assert plan.slots.tolist() == [p.sequence.slot for p in pieces]
    assert [[b for b in row if b] for row in plan.block_table.tolist()] == [p.sequence.blocks for p in pieces]
    assert plan.preempted.tolist() == preempted


def compare_stats(stats: SchedulerStats, model: ModelScheduler) -> None:
    assert stats.free_blocks == len(model.free_blocks)
    assert stats.free_slots == len(model.free_slots)
    assert (stats.waiting, stats.running) == (len(model.waiting), len(model.running))
    for name in ("preemptions", "aborts", "steps", "chunks", "mixed_steps"):
        assert getattr(stats, name) == getattr(model, name), name


def small_config(
    *,
    blocks: int = 6,
    block_size: int = 4,
    seqs: int = 4,
    budget: int = 16,
    chunk: int | None = None,
    model_len: int = 64,
    lookback: int = 3,
    policy: StepPolicy = StepPolicy.MIXED,
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
        lookback=lookback,
        policy=policy,
    )
