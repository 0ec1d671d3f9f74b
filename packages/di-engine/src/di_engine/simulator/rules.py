"""How the ranks that step together agree on their next step."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from di_scheduler import Scheduler, StepKind, StepPlan, StepPolicy
from di_scheduler.lockstep import GroupIdle, LockstepPlanner, PlannedStep, PrefillRule, ReferenceIntervals
from di_scheduler.voting import InProcessVote

USAGE_LIMIT = 0.9
"""Share of the blocks, the null block included, above which a rank of the reference does not want to prefill."""


class StepRule(enum.Enum):
    """Who decides whether a homogeneous step is prefill or decode."""

    OWN = "own"
    """Our rule: a scheduler's own turns; by vote where ranks are in lockstep."""
    REFERENCE = "reference"
    """The reference's: attempts every 70 and 100 decode steps (scheduler spec, 6.1), with or without other ranks."""


class GroupPlanner(Protocol):
    """Plans one step of every rank of a group."""

    def plan(self, now: float) -> Sequence[StepPlan] | None:
        """One plan a rank; the step is computed even if all are empty. None: nothing to compute now."""

    def close(self) -> None:
        """Nothing will be planned any more."""


class FreePlanner:
    """Every rank plans what its scheduler's policy gives."""

    def __init__(self, schedulers: Sequence[Scheduler]) -> None:
        self._schedulers = schedulers

    def plan(self, now: float) -> Sequence[StepPlan] | None:
        plans = [scheduler.plan(now) for scheduler in self._schedulers]
        return plans if any(plan.num_rows for plan in plans) else None

    def close(self) -> None:
        pass


class VotingPlanner:
    """Ranks in lockstep: one ``LockstepPlanner`` each, which wait for each other on threads.

    Votes are barriers and a scheduler is used by its own rank's thread only, so the outcome does not depend on timing.
    """

    def __init__(self, schedulers: Sequence[Scheduler], rule: PrefillRule | None) -> None:
        """``rule``: what the vote decides by; None for the default of ``LockstepPlanner``."""
        votes = InProcessVote.group(len(schedulers))
        self._planners = [
            LockstepPlanner(WatermarkedScheduler(one) if rule is not None else one, vote, rule=rule)
            for one, vote in zip(schedulers, votes, strict=True)
        ]
        self._threads = ThreadPoolExecutor(len(schedulers)) if len(schedulers) > 1 else None

    def plan(self, now: float) -> Sequence[StepPlan] | None:
        for planner in self._planners:
            planner.wake()  # time is virtual: an idle group does not sleep

        def turn(planner: LockstepPlanner) -> StepPlan | None:
            match planner.plan(now):
                case PlannedStep(plan=plan):
                    return plan
                case GroupIdle():
                    return None
            raise RuntimeError("a rank left the group, which nobody asked it to")

        turns = (
            map(turn, self._planners) if self._threads is None else self._threads.map(turn, self._planners)
        )
        plans = [plan for plan in turns if plan is not None]
        return plans or None

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()


class WatermarkedScheduler:
    """A scheduler that does not want to prefill while its pool is too full (scheduler spec, 6.1, step 3)."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def plan(self, now: float = 0.0, kind: StepKind = StepKind.ANY) -> StepPlan:
        return self._scheduler.plan(now, kind)

    def wants_prefill(self) -> bool:
        if not self._scheduler.wants_prefill():
            return False
        blocks = self._scheduler.config.num_blocks
        return (blocks - self._scheduler.stats().free_blocks) / blocks <= USAGE_LIMIT

    def has_decodes(self) -> bool:
        return self._scheduler.has_decodes()

    def has_unfinished(self) -> bool:
        return self._scheduler.has_unfinished()

    def num_open_plans(self) -> int:
        return self._scheduler.num_open_plans()


def make_planner(schedulers: Sequence[Scheduler], rule: StepRule) -> GroupPlanner:
    """The planner of one group of ranks, which have the same configuration."""
    if rule is StepRule.REFERENCE:
        return VotingPlanner(schedulers, ReferenceIntervals())
    if schedulers[0].config.policy is StepPolicy.HOMOGENEOUS and len(schedulers) > 1:
        return VotingPlanner(schedulers, None)
    return FreePlanner(schedulers)
