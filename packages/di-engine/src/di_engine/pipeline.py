"""Steps on their way through the device: while one is computed, the host plans the next and commits the last.

A step has two tasks. ``forward`` needs the tokens of the step before, which the device has as soon as they are drawn.
``sample`` also needs the host's commit of the step before, which brings the sampling states up to date, and is queued
when that is done. So the device does not wait for the host while it has rows to compute, and nothing in it can wait for
something that is behind it in the queue.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import NamedTuple

import numpy as np
from di_scheduler import StepPlan

from di_engine.device import CallingThread, Device, DeviceThread, Pending
from di_engine.errors import StepTimeoutError
from di_engine.request import RequestSequence
from di_engine.runner import StepOffer, StepResult, StepRows, StepRunner

_Rows = tuple[StepPlan, Sequence[RequestSequence], StepRows | Exception | None, float]
"""A step between its two tasks: the plan with every row known, its sequences, what was computed (None without rows) or
raised, and the milliseconds that it took."""


class CompletedStep(NamedTuple):
    """A step as it was computed.

    plan: with every row known. sequences: those of the plan, in its order. result: what came of it, or what was raised.
    forward_ms, sample_ms: what its two tasks took.
    """

    plan: StepPlan
    sequences: Sequence[RequestSequence]
    result: StepResult | Exception
    offer: StepOffer
    forward_ms: float
    sample_ms: float


@dataclass(eq=False)
class _Flight:
    rows: Pending[_Rows]
    completed: Pending[CompletedStep] | None = None


class StepPipeline:
    """At most ``depth`` steps, oldest first: 1 computes in the calling thread, 2 in a thread of its own.

    Args:
        runner: computes steps.
        depth: 1 or 2.
        timeout: seconds to wait for a step. In the calling thread there is nothing to wait for.
    """

    def __init__(self, runner: StepRunner, depth: int, timeout: float) -> None:
        self.depth = depth
        self._runner, self._timeout = runner, timeout
        self._device: Device = CallingThread() if depth == 1 else DeviceThread()
        self._flights: deque[_Flight] = deque()

    def __len__(self) -> int:
        """Steps that were submitted and not released."""
        return len(self._flights)

    def submit(self, plan: StepPlan, sequences: Sequence[RequestSequence]) -> None:
        """Queue the rows of a plan behind the steps that are there."""
        before = self._flights[-1].completed if self._flights else None
        flight = _Flight(self._device.submit(partial(_forward, self._runner, plan, sequences, before)))
        self._flights.append(flight)
        if len(self._flights) == 1:
            self._permit(flight)

    def collect(self) -> CompletedStep | None:
        """Wait for the oldest step. None when there is none, or it was cleared meanwhile.

        Raises:
            StepTimeoutError: it took too long. What the device does is unknown; ``clear`` before going on.
        """
        completed = self._flights[0].completed if self._flights else None
        if completed is None:
            return None
        try:
            return completed.result(self._timeout)
        except CancelledError:
            return None
        except TimeoutError:
            if not completed.done():
                raise StepTimeoutError("a step", self._timeout) from None
        # It ended just as the wait did, or the error is its own.
        return None if completed.cancelled() else completed.result()

    def release(self) -> None:
        """The oldest step is committed: the next may sample."""
        self._flights.popleft()
        if self._flights:
            self._permit(self._flights[0])

    def clear(self) -> None:
        """Forget all steps. One that runs ends by itself, before any that is submitted from now on begins."""
        for flight in self._flights:
            for future in (flight.rows, flight.completed):
                if future is not None:
                    future.cancel()
        self._flights.clear()

    def close(self) -> None:
        """Forget all steps and end the device thread. Raises StepTimeoutError if it does not end."""
        self.clear()
        self._device.close(self._timeout)

    def _permit(self, flight: _Flight) -> None:
        flight.completed = self._device.submit(partial(_sample, self._runner, flight.rows))


def _forward(
    runner: StepRunner,
    plan: StepPlan,
    sequences: Sequence[RequestSequence],
    before: Pending[CompletedStep] | None,
) -> _Rows:
    """First task: fill in what the step before has decided, and compute the rows."""
    if before is not None:
        offer = before.result(timeout=0).offer  # its tasks were queued before this one
        resolved = plan.resolve(offer.tokens, offer.counts, offer.drafts, offer.confidences)
        if resolved.num_seqs < plan.num_seqs:  # some were dropped; the others keep their order
            sequences = tuple(compress(sequences, np.isin(plan.seq_ids, resolved.seq_ids)))
        plan = resolved
    begin = time.perf_counter()
    computed: StepRows | Exception | None = None
    try:
        runner.copy(plan)
        if plan.num_rows > 0:
            computed = runner.forward(plan, sequences)
    except Exception as error:  # the step's sequences pay for it, the engine goes on
        computed = error
    return plan, sequences, computed, 1e3 * (time.perf_counter() - begin)


def _sample(runner: StepRunner, rows: Pending[_Rows]) -> CompletedStep:
    """Second task: tokens and drafts from the rows."""
    plan, sequences, computed, forward_ms = rows.result(timeout=0)
    begin = time.perf_counter()
    result: StepResult | Exception
    if isinstance(computed, Exception):
        result = computed
    elif computed is None:
        result = StepResult(())
    else:
        try:
            result = runner.sample(plan, sequences, computed)
        except Exception as error:
            result = error
    offer = StepOffer.nothing(len(plan.sampling)) if isinstance(result, Exception) else result.offer()
    return CompletedStep(plan, sequences, result, offer, forward_ms, 1e3 * (time.perf_counter() - begin))
