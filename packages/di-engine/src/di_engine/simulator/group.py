"""Ranks that step together, and their device's time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from di_scheduler import StepPlan

from di_engine.simulator.curve import StepCurve
from di_engine.simulator.rank import Rank
from di_engine.simulator.record import Recorder
from di_engine.simulator.rules import GroupPlanner

Plans = Sequence[StepPlan | None]
"""One plan a rank; None where the rank has no rows and nothing to commit."""


@dataclass(slots=True)
class GroupCounters:
    """Steps of a group, and their time."""

    steps: int = 0
    """Steps with rows."""
    empty_steps: int = 0
    """Steps that no rank had a row in."""
    busy_seconds: float = 0.0
    """The device's time, empty steps included."""


class Group:
    """Ranks whose steps begin and end together: the slowest decides. A group of one rank is a replica of its own.

    ``advance`` is called at the times it asked for, and by whoever wakes a sleeping group. It takes in the step that
    ended, begins the next, and says when to come back. Synchronous: plan, host time, device time, commit. Asynchronous:
    when a step begins, the one behind it is planned, with what has arrived by then; it begins when the device is free
    and the host time is over.
    """

    def __init__(
        self,
        ranks: Sequence[Rank],
        planner: GroupPlanner,
        curve: StepCurve,
        recorder: Recorder,
        asynchronous: bool,
    ) -> None:
        self.ranks = ranks
        self.counters = GroupCounters()
        self.asleep = True
        self._planner = planner
        self._curve = curve
        self._recorder = recorder
        self._asynchronous = asynchronous
        self._ready: Plans | None = None  # planned, begins next
        self._flying: Plans | None = None  # on the device
        self._behind: Plans | None = None  # planned while another was on the device
        self._planned_at = 0.0

    def advance(self, now: float) -> float | None:
        """Do what is due now; when to be called again in seconds, or None: nothing to do until it is woken."""
        self.asleep = False
        if self._ready is not None:
            return self._begin(self._ready, now)
        plans = self._land(now)
        if plans is None:
            plans, self._planned_at = self._planner.plan(now), now
        if plans is None:
            self.asleep = True
            return None
        start = self._planned_at + self._curve.host
        if start <= now:
            return self._begin(plans, now)
        self._ready = plans
        return start

    def close(self) -> None:
        """The simulation is over."""
        self._planner.close()

    def _begin(self, plans: Plans, now: float) -> float:
        """Put a step on the device; the time at which it ends."""
        self._ready, self._flying = None, plans
        seconds = max(self._device_seconds(plan) for plan in plans)
        self.counters.busy_seconds += seconds
        if any(plan is not None and plan.num_rows for plan in plans):
            self.counters.steps += 1
        else:
            self.counters.empty_steps += 1
        if self._asynchronous:
            self._behind, self._planned_at = self._planner.plan(now), now
        return now + seconds

    def _land(self, now: float) -> Plans | None:
        """Commit the step that ended, if any; the step planned behind it, or None when that has no rows."""
        flying, behind = self._flying, self._behind
        self._flying = self._behind = None
        if flying is None:
            return None
        following = [
            self._commit(rank, plan, None if behind is None else behind[index], now)
            for index, (rank, plan) in enumerate(zip(self.ranks, flying, strict=True))
        ]
        return following if any(plan is not None for plan in following) else None

    def _commit(
        self, rank: Rank, plan: StepPlan | None, behind: StepPlan | None, now: float
    ) -> StepPlan | None:
        """Commit a rank's plan; the plan behind it with everything filled in, or None when it has no rows."""
        following = behind if behind is not None and behind.num_rows else None
        if plan is None or not plan.num_rows:
            return following
        drawn = rank.draw(plan)
        resolved = None if following is None else rank.resolve(following, drawn)
        self._recorder.committed(plan, rank.commit(drawn, now), now)
        if resolved is not None and not resolved.num_rows:  # all of its sequences have ended
            self._recorder.committed(resolved, rank.commit(rank.draw(resolved), now), now)
            return None
        return resolved

    def _device_seconds(self, plan: StepPlan | None) -> float:
        """Of one rank; a rank without rows computes a placeholder, which never is the slowest of several."""
        if plan is None or not plan.num_rows:
            return self._curve.device_seconds(1, 1)
        return self._curve.device_seconds(plan.num_rows, int(plan.q_start.sum()) + plan.num_rows)
