"""What happens to every request of a simulation, kept as arrays."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from di_scheduler import CommitResult, FinishReason, StepPlan
from numpy.typing import NDArray

from di_engine.simulator.trace import Trace


@dataclass(slots=True)
class WeightedSamples:
    """Values and how often each was seen; steps in which all requests wait equally long cost one entry."""

    values: list[float] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)

    def add(self, values: NDArray[np.float64]) -> None:
        """Count each of at least one value."""
        first = float(values[0])
        if (values == first).all():
            self.values.append(first)
            self.weights.append(len(values))
            return
        distinct, counts = np.unique(values, return_counts=True)
        self.values += distinct.tolist()
        self.weights += counts.tolist()


def ends(result: CommitResult) -> NDArray[np.bool_]:
    """[n] which sequences this commit ended: no request fails here, so an end comes with a token. One without is the
    echo of a sequence that ended while its next step was in flight."""
    ended: NDArray[np.bool_] = (result.finish != FinishReason.NONE) & (result.num_committed > 0)
    return ended


class Recorder:
    """Times of the requests of a trace, and what was computed for whom."""

    def __init__(self, trace: Trace) -> None:
        count = len(trace)
        self.trace = trace
        self.first_token = np.full(count, np.nan)
        """[n] seconds at which the first token was there; NaN before."""
        self.last_token = np.full(count, np.nan)
        """[n] seconds at which the latest token was there; NaN before the first."""
        self.finished = np.full(count, np.nan)
        """[n] seconds at which the request ended; NaN before."""
        self.reason = np.zeros(count, np.int8)
        """[n] a FinishReason; NONE before the end, and for a request that was refused."""
        self.tokens = np.zeros(count, np.int64)
        """[n] tokens generated."""
        self.times_ended = np.zeros(count, np.int32)
        """[n] in how many commits the request ended."""
        self.gaps = WeightedSamples()
        """Seconds between deliveries of tokens to a request."""
        self.rows = 0
        """Rows computed, in all."""
        self.fairness = FairnessMeter(trace) if trace.num_users > 1 else None

    def arrived(self, request: int, now: float) -> None:
        """A request was given to a scheduler."""
        if self.fairness is not None:
            self.fairness.arrived(int(self.trace.user[request]), now)

    def committed(self, plan: StepPlan, result: CommitResult, now: float) -> None:
        """A step's results are there. Sequence ids are indices of the trace."""
        self.rows += plan.num_rows
        if self.fairness is not None:
            self.fairness.served(plan, now)
        ids, kept = result.seq_ids, result.num_committed
        if not kept.all():  # ended meanwhile: these got nothing
            ids, kept = ids[kept > 0], kept[kept > 0]
        if len(ids):
            self._deliver(ids, kept, now)
        if result.finish.any():
            ended = ends(result)
            who = result.seq_ids[ended]
            self.finished[who] = now
            self.reason[who] = result.finish[ended]
            self.times_ended[who] += 1

    def _deliver(self, ids: NDArray[np.int64], kept: NDArray[np.int32], now: float) -> None:
        gaps = now - self.last_token[ids]
        self.last_token[ids] = now
        self.tokens[ids] += kept
        fresh = np.isnan(gaps)
        if fresh.any():
            self.first_token[ids[fresh]] = now
            if self.fairness is not None:
                self.fairness.started(self.trace.user[ids[fresh]])
            gaps = gaps[~fresh]
        if len(gaps):
            self.gaps.add(gaps)


FAIRNESS_WINDOW = 5.0
"""Seconds over which service is compared."""


class FairnessMeter:
    """Jain's index of the service that users got, where they had reason to compete.

    Over a whole run every user gets what they asked for, whoever waits; so service (rows computed) is compared window
    by window, among the users who had a request without its first token during all of the window. The index of a window
    is ``(sum x) ** 2 / (n * sum x ** 2)`` over n such users, at least two: 1 when all got the same, 1 / n when one got
    everything (Jain, Chiu and Hawe, 1984).
    """

    def __init__(self, trace: Trace) -> None:
        users = trace.num_users
        self._user = trace.user
        self._waiting = np.zeros(users, np.int64)
        self._backlogged = np.zeros(users, np.bool_)
        self._service = np.zeros(users)
        self._window_end = FAIRNESS_WINDOW
        self.indices: list[float] = []
        """Jain's index of each window in which at least two users competed."""

    def arrived(self, user: int, now: float) -> None:
        """A request of the user begins to wait."""
        self._roll(now)
        self._waiting[user] += 1

    def started(self, users: NDArray[np.int32]) -> None:
        """Requests of these users got their first tokens; a user may stand there more than once."""
        np.subtract.at(self._waiting, users, 1)
        self._backlogged &= self._waiting > 0

    def served(self, plan: StepPlan, now: float) -> None:
        """Rows of a step that ended now."""
        self._roll(now)
        users = self._user[plan.seq_ids]
        self._service += np.bincount(users, weights=plan.q_len, minlength=len(self._service))

    def _roll(self, now: float) -> None:
        if now < self._window_end:
            return
        competing = self._service[self._backlogged]
        total = competing.sum()
        if len(competing) > 1 and total > 0:
            self.indices.append(float(total**2 / (len(competing) * np.square(competing).sum())))
        self._service[:] = 0
        self._backlogged = self._waiting > 0
        self._window_end = (now // FAIRNESS_WINDOW + 1) * FAIRNESS_WINDOW
