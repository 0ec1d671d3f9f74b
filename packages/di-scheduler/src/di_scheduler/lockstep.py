"""Homogeneous steps of data-parallel ranks: all make the same kind of step, in every step.

Collectives inside the model join the ranks of a group, so no rank may prefill while another decodes. The ranks vote
before each step (scheduler spec, 6); a rank with nothing to do takes part with an empty plan.
"""

import dataclasses
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from di_scheduler._checks import check_int
from di_scheduler._native import StepPlan
from di_scheduler.config import StepKind
from di_scheduler.errors import ConfigError
from di_scheduler.voting import InProcessVote, Vote, VoteMismatchError


class LockstepScheduler(Protocol):
    """What the planner asks of a rank's scheduler. `Scheduler` is one."""

    def plan(self, now: float = ..., kind: StepKind = ...) -> StepPlan: ...

    def wants_prefill(self) -> bool: ...

    def has_decodes(self) -> bool: ...

    def has_unfinished(self) -> bool: ...

    def num_open_plans(self) -> int: ...


@dataclass(frozen=True, slots=True)
class GroupState:
    """What the ranks told each other before a step. The same on all of them."""

    any_wants: bool
    """A prompt could be started or continued on some rank."""
    all_want: bool
    any_decodes: bool
    """Some rank has a decode to run."""
    any_objects: bool
    """Some rank has a decode to run and no prompt: a prefill step would keep it idle."""
    longest_wait: int
    """Steps for which the oldest want of a rank has lasted; a prompt in chunks is one want until it is done."""
    any_unfinished: bool
    all_stop: bool


@dataclass(frozen=True, slots=True)
class StepHistory:
    """The steps of the group since the last one of the other kind. The same on all ranks."""

    prefill_run: int = 0
    """Prefill steps in a row."""
    decode_run: int = 0
    """Decode steps in a row."""

    def then(self, kind: StepKind) -> "StepHistory":
        """The history after a step of this kind."""
        if kind is StepKind.PREFILL:
            return StepHistory(prefill_run=self.prefill_run + 1)
        return StepHistory(decode_run=self.decode_run + 1)


class PrefillRule(Protocol):
    """Decides the kind of a step from what all ranks know, so that all decide alike."""

    def chooses_prefill(self, group: GroupState, history: StepHistory) -> bool:
        """Whether the next step is a prefill step."""


@dataclass(frozen=True, slots=True)
class BoundedWaits:
    """Prefill when it keeps nobody from decoding, and both kinds within a bound.

    A step is prefill when some rank wants it and every rank wants it or has nothing to decode; or when a want has
    lasted `max_prefill_wait` steps. After `max_decode_wait` prefill steps in a row, decodes come first. So a prompt
    that could start does so after at most max(`max_prefill_wait`, 1) decode steps, and its further chunks follow
    without waiting so long again. Raises `ConfigError` for a bound that is out of range.
    """

    max_prefill_wait: int = 8
    """Steps for which a want may be put off; 0: not at all."""
    max_decode_wait: int = 1
    """Prefill steps in a row while any rank has a decode to run."""

    def __post_init__(self) -> None:
        check_int("max_prefill_wait", self.max_prefill_wait, 0)
        check_int("max_decode_wait", self.max_decode_wait, 1)

    def chooses_prefill(self, group: GroupState, history: StepHistory) -> bool:
        """See `PrefillRule.chooses_prefill`."""
        if not group.any_wants or not group.any_decodes:
            return group.any_wants
        if history.prefill_run >= self.max_decode_wait:
            return False
        return not group.any_objects or group.longest_wait >= self.max_prefill_wait


@dataclass(frozen=True, slots=True)
class ReferenceIntervals:
    """The rule of DeepInfer 0.1.0, to compare with (scheduler spec, 6.1).

    By the decode steps since the last prefill step: at multiples of `any_every` (0 is none) prefill when any rank wants
    it, else at multiples of `all_every` when all do. Raises `ConfigError` for an interval below 1.
    """

    all_every: int = 70
    any_every: int = 100

    def __post_init__(self) -> None:
        check_int("all_every", self.all_every, 1)
        check_int("any_every", self.any_every, 1)

    def chooses_prefill(self, group: GroupState, history: StepHistory) -> bool:
        """See `PrefillRule.chooses_prefill`."""
        steps = history.decode_run
        if steps and steps % self.any_every == 0:
            return group.any_wants
        return steps % self.all_every == 0 and group.all_want


@dataclass(frozen=True, slots=True, eq=False)
class PlannedStep:
    """All ranks run a step of this kind now; one whose plan is empty runs a placeholder."""

    kind: StepKind
    """PREFILL or DECODE."""
    plan: StepPlan


@dataclass(frozen=True, slots=True, eq=False)
class GroupIdle:
    """No rank had anything to run. The caller takes in what has arrived and asks for the next step."""

    plan: StepPlan | None
    """Empty; tells what deadlines ended. None when nothing at all was unfinished."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupStopped:
    """All ranks leave the group now."""


@dataclass(frozen=True, slots=True)
class LockstepStats:
    """Counts since construction. All but `empty_steps` are the same on all ranks after the same step."""

    votes: int
    prefill_steps: int
    decode_steps: int
    idle_turns: int
    failed_prefills: int
    """Times the group chose prefill and no rank came up with any."""
    decode_run: int
    """Decode steps in a row since the last prefill step."""
    empty_steps: int
    """Steps in which this rank ran a placeholder."""


class LockstepPlanner:
    """`Scheduler.plan` for one rank of a data-parallel group. One thread of each rank calls `plan`.

    A step takes one vote, and a second one when it is to be prefill: a rank may find that a prompt does not fit after
    all, and if no rank has any, the group decodes in the same step, or, with nothing to decode either, is idle. Nothing
    is locked while the planner waits for other ranks: other threads may add and abort sequences meanwhile.

    `idle_interval_s`: when no rank has anything to run, votes are this far apart, unless `wake` is called. It has to be
    well below the vote's deadline; `ConfigError` when it is not positive.
    """

    def __init__(
        self,
        scheduler: LockstepScheduler,
        vote: Vote | None = None,
        *,
        rule: PrefillRule | None = None,
        idle_interval_s: float = 0.02,
    ) -> None:
        if not 0 < idle_interval_s < float("inf"):
            raise ConfigError(f"idle_interval_s must be positive and finite, got {idle_interval_s!r}")
        self._scheduler = scheduler
        self._vote = InProcessVote.alone() if vote is None else vote
        self._rule = BoundedWaits() if rule is None else rule
        self._idle_interval_s = idle_interval_s
        self._wakeup = threading.Event()
        self._stopping = threading.Event()
        self._wait = 0
        self._history = StepHistory()
        self._stats = LockstepStats(0, 0, 0, 0, 0, 0, 0)

    def plan(self, now: float = 0.0) -> PlannedStep | GroupIdle | GroupStopped:
        """The next step of this rank, agreed with all others.

        Every rank calls this in a loop until it is told `GroupStopped`; `now` as for `Scheduler.plan`. Waits for the
        other ranks, and, when there is nothing to do, for `wake` or `idle_interval_s`. Raises what the vote and the
        scheduler raise.
        """
        wants = self._scheduler.wants_prefill()
        group = self._tell(wants)
        if group.all_stop and not group.any_unfinished:
            return GroupStopped()
        if not (group.any_wants or group.any_decodes):
            return self._look_again(now) if group.any_unfinished else self._idle(None)
        plan = None
        if self._rule.chooses_prefill(group, self._history):
            plan = self._scheduler.plan(now, kind=StepKind.PREFILL)
            if self._anybody(plan):
                self._count_wait(wants, done=bool(plan.samples.any()))
                return self._step(StepKind.PREFILL, plan)
            self._stats = dataclasses.replace(self._stats, failed_prefills=self._stats.failed_prefills + 1)
            self._count_wait(wants, done=True)  # not before the bound again: a failed attempt costs a vote
            if not group.any_decodes:
                return self._look_again(now, plan)
        else:
            self._count_wait(wants, done=False)
        return self._step(
            StepKind.DECODE, _with_events(plan, self._scheduler.plan(now, kind=StepKind.DECODE))
        )

    def wake(self) -> None:
        """Something has arrived: do not sleep. Any thread may call this."""
        self._wakeup.set()

    def request_stop(self) -> None:
        """This rank has no more to do for itself. Any thread may call this.

        It takes part until every rank has asked to stop and nothing is unfinished anywhere; then all are told
        `GroupStopped` in the same turn. To stop early, abort what is unfinished.
        """
        self._stopping.set()
        self._wakeup.set()

    def stats(self) -> LockstepStats:
        """Counts so far."""
        return self._stats

    def _tell(self, wants: bool) -> GroupState:
        """The first vote. A bit is 0 where it is true, for "any", or where it is false, for "all"."""
        decodes = self._scheduler.has_decodes()
        no_wants, all_want, no_decodes, no_objection, wait, all_finished, all_stop = self._minimum(
            (
                not wants,
                wants,
                not decodes,
                not decodes or wants,
                -self._wait if wants else 0,
                not self._scheduler.has_unfinished(),
                self._stopping.is_set(),
            )
        )
        return GroupState(
            any_wants=not no_wants,
            all_want=bool(all_want),
            any_decodes=not no_decodes,
            any_objects=not no_objection,
            longest_wait=-wait,
            any_unfinished=not all_finished,
            all_stop=bool(all_stop),
        )

    def _anybody(self, plan: StepPlan) -> bool:
        """The second vote: whether any rank has rows to run."""
        (nobody,) = self._minimum((plan.num_seqs == 0,))
        return not nobody

    def _minimum(self, values: Sequence[int]) -> list[int]:
        """One vote. The number of the vote goes with it, twice, so that ranks out of step are found out."""
        number = self._stats.votes
        self._stats = dataclasses.replace(self._stats, votes=number + 1)
        *agreed, first, last = self._vote.minimum([*map(int, values), number, -number])
        if first != number or -last != number:
            raise VoteMismatchError(
                f"all ranks must be at the same vote; rank {self._vote.rank} is at number {number}, others from "
                f"{first} to {-last}",
                range(self._vote.size),
            )
        return agreed

    def _count_wait(self, wants: bool, *, done: bool) -> None:
        self._wait = self._wait + 1 if wants and not done else 0

    def _step(self, kind: StepKind, plan: StepPlan) -> PlannedStep:
        self._history = self._history.then(kind)
        s = self._stats
        self._stats = dataclasses.replace(
            s,
            prefill_steps=s.prefill_steps + (kind is StepKind.PREFILL),
            decode_steps=s.decode_steps + (kind is StepKind.DECODE),
            decode_run=self._history.decode_run,
            empty_steps=s.empty_steps + (plan.num_seqs == 0),
        )
        return PlannedStep(kind, plan)

    def _look_again(self, now: float, earlier: StepPlan | None = None) -> PlannedStep | GroupIdle:
        """Something is unfinished and nothing could run: time may end it, or another thread may have set it going."""
        plan = _with_events(earlier, self._scheduler.plan(now, kind=StepKind.DECODE))
        return self._step(StepKind.DECODE, plan) if self._anybody(plan) else self._idle(plan)

    def _idle(self, plan: StepPlan | None) -> GroupIdle:
        self._stats = dataclasses.replace(self._stats, idle_turns=self._stats.idle_turns + 1)
        if self._scheduler.num_open_plans() == 0:  # else the caller has a commit to make first
            self._wakeup.wait(self._idle_interval_s)
        self._wakeup.clear()
        return GroupIdle(plan)


def _with_events(empty: StepPlan | None, plan: StepPlan) -> StepPlan:
    """`plan`, with what ended or lost its cache while an empty plan of the same step was made before it."""
    return plan if empty is None else plan.after(empty)
