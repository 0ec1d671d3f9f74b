"""Drives the native scheduler and its Python model together, comparing them and checking the properties."""

from collections.abc import Callable

from di_scheduler import (
    CommitResult,
    EngineKind,
    FinishReason,
    SchedulerConfig,
    SequenceLimits,
    SequenceOptions,
    StepKind,
    StepPlan,
    StepPolicy,
)
from di_scheduler.cost_curve import CostCurve

from .compare import compare_plan, compare_result, compare_sequences, compare_stats
from .model import ModelScheduler
from .model_state import Results
from .watched import ALL, PLAIN, Checks, Watched, int32

__all__ = ["Lockstep", "int32", "small_config"]


class Lockstep(Watched):
    """One native scheduler and one model of it. The model goes first, so that every check may compare them."""

    def __init__(self, config: SchedulerConfig, checks: Checks = ALL) -> None:
        super().__init__(config, checks)
        self.model = ModelScheduler(config)
        self.model_tickets: list[int] = []  # in the order of `tickets`

    def add(
        self,
        seq_id: int,
        prompt: list[int],
        limits: SequenceLimits,
        arrival: float = 0.0,
        options: SequenceOptions = PLAIN,
    ) -> None:
        self.model.add(seq_id, prompt, limits, arrival, options)
        super().add(seq_id, prompt, limits, arrival, options)

    def set_ready(self, seq_id: int) -> bool:
        expected = self.model.set_ready(seq_id)
        assert super().set_ready(seq_id) == expected
        return expected

    def finish(self, seq_id: int, reason: FinishReason = FinishReason.ABORT) -> bool:
        expected = self.model.finish(seq_id, reason)
        assert super().finish(seq_id, reason) == expected
        return expected

    def fork(
        self,
        parent_id: int,
        seq_id: int,
        num_tokens: int,
        limits: SequenceLimits,
        arrival: float = 0.0,
        options: SequenceOptions = PLAIN,
    ) -> bool:
        expected = self.model.fork(parent_id, seq_id, num_tokens, limits, arrival, options)
        assert super().fork(parent_id, seq_id, num_tokens, limits, arrival, options) == expected
        return expected

    def begin_transfer(self, seq_id: int, expires: float) -> int:
        self.model_tickets.append(self.model.begin_transfer(seq_id, expires))
        return super().begin_transfer(seq_id, expires)

    def import_sequence(
        self,
        seq_id: int,
        tokens: list[int],
        prompt_len: int,
        limits: SequenceLimits,
        expires: float,
        options: SequenceOptions = PLAIN,
    ) -> int | None:
        expected = self.model.import_sequence(seq_id, tokens, prompt_len, limits, expires, options=options)
        if expected is not None:
            self.model_tickets.append(expected)
        number = super().import_sequence(seq_id, tokens, prompt_len, limits, expires, options)
        assert (number is None) == (expected is None)
        return number

    def end_transfer(self, number: int, ok: bool) -> bool:
        expected = self.model.end_transfer(self.model_tickets[number], ok)
        assert super().end_transfer(number, ok) == expected
        return expected

    def set_step_cost(self, curve: CostCurve | None) -> None:
        """Of a curve that is one straight line."""
        self.model.core.cost = None
        if curve is not None:
            (first, last), (low, high) = curve.sizes, curve.milliseconds
            per_row = (high - low) / (last - first)
            self.model.core.cost = lambda rows, _: low + per_row * (rows - first)
        super().set_step_cost(curve)

    def planned(self, plan: StepPlan, now: float, kind: StepKind) -> None:
        compare_plan(plan, self.model.plan(now, kind))

    def committed(
        self, results: Results, result: CommitResult, resolved: StepPlan | None, now: float
    ) -> None:
        compare_result(result, self.model.commit(results, now))
        if resolved is not None:
            compare_plan(resolved, self.model.core.open_plans[0], resolved=True)

    def step(self, next_token: Callable[[list[int]], int], now: float = 0.0) -> None:
        """Plan and commit; the next token is a function of all tokens before it."""
        step = self.make_plan(now)
        if step.groups:
            self.commit(self.plain([next_token(rows.request.tokens) for rows in step.sampling]), now)

    def check(self) -> None:
        super().check()
        compare_stats(self.seen.stats, self.model)
        compare_sequences(self.seen.infos, self.model)
        assert self.scheduler.wants_prefill() == self.model.wants_prefill()
        assert self.scheduler.has_decodes() == self.model.has_decodes()


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
