"""Ranks of a data-parallel group as threads, each with a scheduler of a few counters."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
from di_scheduler.config import StepKind
from di_scheduler.lockstep import (
    GroupStopped,
    LockstepPlanner,
    PlannedStep,
    PrefillRule,
)
from di_scheduler.voting import InProcessVote


@dataclass(frozen=True)
class CounterPlan:
    """The part of a `StepPlan` that a planner looks at."""

    num_seqs: int = 0
    samples: np.ndarray = field(default_factory=lambda: np.zeros(0, np.bool_))
    preempted: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    expired: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def after(self, earlier: "CounterPlan") -> "CounterPlan":
        return replace(
            self,
            preempted=np.concatenate((earlier.preempted, self.preempted)),
            expired=np.concatenate((earlier.expired, self.expired)),
        )


class CounterScheduler:
    """Prompts as chunks left, decodes as tokens left."""

    def __init__(self) -> None:
        self.prompts: deque[tuple[int, int]] = deque()  # chunks left, tokens to generate
        self.open_chunk = False
        self.decodes: list[int] = []
        self.over_watermark = False
        self.empty_handed = False  # its plans of prefill come up empty, whatever it wants
        self.not_ready = 0  # unfinished sequences that nothing can be done for
        self.events: list[int] = []  # ids for the next plan's `expired`
        self.open_plans = 0
        self.open_kind: StepKind | None = None
        self.calls: list[StepKind] = []

    def wants_prefill(self) -> bool:
        return bool(self.prompts) and (self.open_chunk or not self.over_watermark)

    def has_decodes(self) -> bool:
        return bool(self.decodes)

    def has_unfinished(self) -> bool:
        return bool(self.prompts or self.decodes or self.not_ready)

    def num_open_plans(self) -> int:
        return self.open_plans

    def plan(self, now: float = 0.0, kind: StepKind = StepKind.ANY) -> CounterPlan:
        self.calls.append(kind)
        expired, self.events = np.array(self.events, np.int64), []
        self.open_kind = None
        if kind is StepKind.PREFILL and self.wants_prefill() and not self.empty_handed:
            self.open_kind = kind
            return CounterPlan(1, np.array([self.prompts[0][0] == 1]), expired=expired)
        if kind is StepKind.DECODE and self.decodes:
            self.open_kind = kind
            return CounterPlan(len(self.decodes), np.ones(len(self.decodes), np.bool_), expired=expired)
        return CounterPlan(expired=expired)

    def commit(self) -> None:
        if self.open_kind is StepKind.PREFILL:
            chunks, tokens = self.prompts.popleft()
            self.open_chunk = chunks > 1
            if chunks > 1:
                self.prompts.appendleft((chunks - 1, tokens))
            elif tokens > 1:
                self.decodes.append(tokens - 1)
        elif self.open_kind is StepKind.DECODE:
            self.decodes = [left - 1 for left in self.decodes if left > 1]
        self.open_kind = None

    def abort_all(self) -> None:
        self.prompts.clear()
        self.decodes.clear()
        self.open_chunk = False


@dataclass(frozen=True)
class Turn:
    """What one rank saw of one call of `LockstepPlanner.plan`."""

    wanted: bool
    had_decodes: bool
    empty_handed: bool
    outcome: type
    kind: StepKind | None
    num_seqs: int
    votes: int
    decode_run: int


Events = Callable[[CounterScheduler, LockstepPlanner], object]


@dataclass
class Rank:
    """A rank and its history."""

    scheduler: CounterScheduler
    planner: LockstepPlanner
    turns: list[Turn] = field(default_factory=list)

    def take_turn(self, events: Sequence[Events] = ()) -> bool:
        """Let `events` happen, plan and commit; False when the group has stopped."""
        for event in events:
            event(self.scheduler, self.planner)
        scheduler, before = self.scheduler, self.planner.stats().votes
        wanted, had_decodes = scheduler.wants_prefill(), scheduler.has_decodes()
        result = self.planner.plan()
        stats = self.planner.stats()
        plan = None if isinstance(result, GroupStopped) else result.plan
        self.turns.append(
            Turn(
                wanted=wanted,
                had_decodes=had_decodes,
                empty_handed=scheduler.empty_handed,
                outcome=type(result),
                kind=result.kind if isinstance(result, PlannedStep) else None,
                num_seqs=0 if plan is None else plan.num_seqs,
                votes=stats.votes - before,
                decode_run=stats.decode_run,
            )
        )
        scheduler.commit()
        return not isinstance(result, GroupStopped)


def run_ranks(script: Sequence[Sequence[Sequence[Events]]], rule: PrefillRule) -> list[Rank]:
    """Run `script[rank][turn]` with one thread a rank; as many turns on each."""
    votes = InProcessVote.group(len(script), deadline_s=20.0)
    ranks = []
    for vote in votes:
        scheduler = CounterScheduler()
        ranks.append(Rank(scheduler, LockstepPlanner(scheduler, vote, rule=rule, idle_interval_s=1e-4)))

    def run(rank: Rank, turns: Sequence[Sequence[Events]]) -> None:
        for events in turns:
            if not rank.take_turn(events):
                return

    with ThreadPoolExecutor(len(ranks)) as pool:
        for future in [pool.submit(run, rank, turns) for rank, turns in zip(ranks, script, strict=True)]:
            future.result()
    return ranks
