"""How the ranks that step together agree on the kind of their next step."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

from di_scheduler import Scheduler, StepKind, StepPlan

ALL_INTERVAL = 70
"""Decode steps between the reference's attempts to prefill when every rank wants it."""
ANY_INTERVAL = 100
"""Decode steps between its attempts to prefill when any rank wants it."""
USAGE_LIMIT = 0.9
"""Share of the blocks, the null block included, above which a rank of the reference does not want to prefill."""


class StepRule(enum.Enum):
    """Who decides whether a step is prefill or decode."""

    OWN = "own"
    """Each rank's scheduler, by its policy."""
    REFERENCE = "reference"
    """Votes every 70 and 100 decode steps (scheduler spec, 6.1)."""


class GroupPlanner(Protocol):
    """Plans one step of every rank of a group."""

    steps_without_rows: bool
    """Whether the group computes steps in which no rank has a row, as long as a request is unfinished."""

    def plan(self, schedulers: Sequence[Scheduler], now: float) -> list[StepPlan | None]:
        """The plan of each rank; None where a rank was not asked."""


class OwnPlanner:
    """Every rank plans what its policy gives."""

    steps_without_rows = False

    def plan(self, schedulers: Sequence[Scheduler], now: float) -> list[StepPlan | None]:
        return [scheduler.plan(now) for scheduler in schedulers]


class ReferencePlanner:
    """The reference's rule for the kind of a step, on our scheduler (scheduler spec, 6.1).

    Only the rule is the reference's: admission, chunks, blocks and preemption are ours. ``d`` counts decode steps since
    the last prefill step, empty ones too. At multiples of 100 (not 0) one rank that wants prefill is enough, at
    multiples of 70 (and at 0) all must want it; in between, and when no rank finds anything to prefill, the group
    decodes. A step without rows is computed all the same: it is how the reference's counter moves on.
    """

    steps_without_rows = True

    def __init__(self, all_interval: int = ALL_INTERVAL, any_interval: int = ANY_INTERVAL) -> None:
        self._all_interval = all_interval
        self._any_interval = any_interval
        self.decode_steps = 0
        """d"""

    def plan(self, schedulers: Sequence[Scheduler], now: float) -> list[StepPlan | None]:
        wants = self._vote(schedulers)
        if wants is not None:
            plans = [
                scheduler.plan(now, StepKind.PREFILL) if want else None
                for scheduler, want in zip(schedulers, wants, strict=True)
            ]
            if any(plan is not None and plan.num_seqs for plan in plans):
                self.decode_steps = 0
                return plans
        self.decode_steps += 1
        return [scheduler.plan(now, StepKind.DECODE) for scheduler in schedulers]

    def _vote(self, schedulers: Sequence[Scheduler]) -> list[bool] | None:
        """Which ranks want to prefill, when the group tries to; else None."""
        steps = self.decode_steps
        any_point = steps != 0 and steps % self._any_interval == 0
        if not any_point and steps % self._all_interval != 0:
            return None
        wants = [self._wants(scheduler) for scheduler in schedulers]
        return wants if (any(wants) if any_point else all(wants)) else None

    @staticmethod
    def _wants(scheduler: Scheduler) -> bool:
        if not scheduler.wants_prefill():
            return False
        blocks = scheduler.config.num_blocks
        return (blocks - scheduler.stats().free_blocks) / blocks <= USAGE_LIMIT


def make_planner(rule: StepRule) -> GroupPlanner:
    """A planner for one group of ranks."""
    return ReferencePlanner() if rule is StepRule.REFERENCE else OwnPlanner()
