"""The ranks' load over time: sampled for the figures, and reported to the balancer, late."""

from __future__ import annotations

import math
from collections import deque

from di_engine.simulator.balance import Balancer, LoadSnapshot
from di_engine.simulator.rank import Rank


class LoadReporter:
    """Samples every rank at fixed intervals and delivers what it saw to the balancer after a delay."""

    def __init__(self, ranks: dict[int, Rank], balancer: Balancer, interval: float, delay: float) -> None:
        """``ranks``: those that report, by number; ``interval`` and ``delay`` in seconds."""
        self._ranks = ranks
        self._balancer = balancer
        self._interval = interval
        self._delay = delay
        self._ticks = 0
        self._flying: deque[list[LoadSnapshot]] = deque()
        self.weights: list[int] = []
        """Intervals for which each sample stands."""
        self.held_tokens: list[list[int]] = []
        """A sample: tokens of the unfinished requests of each rank that reports."""
        self.used_blocks: list[list[int]] = []
        """A sample: used blocks of each rank that reports."""
        self.report_now(0.0)

    def advance(self, now: float) -> None:
        """Sample at the ticks up to now, and deliver what has been under way for long enough.

        To be called before anything changes: between two calls the ranks are as they are now, so many ticks make one
        sample, and of their reports only those matter that may be the latest at some time from now on.
        """
        due = math.floor(now / self._interval) + 1 - self._ticks
        if due > 0:
            self._sample(due)
            under_way = math.ceil(self._delay / self._interval) + 1
            for back in reversed(range(min(due, under_way))):
                self._flying.append(self._snapshots((self._ticks - 1 - back) * self._interval))
        while self._flying and self._flying[0][0].taken + self._delay <= now:
            for snapshot in self._flying.popleft():
                self._balancer.update(snapshot)

    def report_now(self, now: float) -> None:
        """Tell the balancer at once how every rank stands."""
        for snapshot in self._snapshots(now):
            self._balancer.update(snapshot)

    def _sample(self, ticks: int) -> None:
        self._ticks += ticks
        self.weights.append(ticks)
        self.held_tokens.append([rank.held_tokens for rank in self._ranks.values()])
        self.used_blocks.append([rank.scheduler.stats().used_blocks for rank in self._ranks.values()])

    def _snapshots(self, now: float) -> list[LoadSnapshot]:
        return [
            LoadSnapshot(number, now, rank.received, rank.held_tokens) for number, rank in self._ranks.items()
        ]
