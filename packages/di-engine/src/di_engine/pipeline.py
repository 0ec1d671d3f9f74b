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
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

import numpy as np
from di_scheduler import StepPlan
from numpy.typing import NDArray
from torch import Tensor

from di_engine.device import CallingThread, Device, DeviceThread
from di_engine.errors import StepTimeoutError
from di_engine.request import RequestSequence
from di_engine.runner import StepResult, StepRunner


@dataclass(frozen=True, eq=False)
class StepOffer:
    """What a step offers the scheduler: arguments of ``StepPlan.resolve`` (without ``failed``) and of
    ``Scheduler.commit``, over the sampling sequences of the step."""

    tokens: NDArray[np.int32]
    counts: NDArray[np.int32]
    failed: NDArray[np.bool_]
    drafts: NDArray[np.int32] | None
    confidences: NDArray[np.float32] | None

    @classmethod
    def of(cls, result: StepResult | Exception, count: int) -> StepOffer:
        """The arrays of a result for ``count`` sequences: of a step that was not computed, no token for any of them."""
        if isinstance(result, Exception):
            nothing = np.empty(0, np.int32), np.zeros(count, np.int32), np.ones(count, np.bool_)
            return cls(*nothing, None, None)
        sampled, proposal = result.sampled, result.proposal
        return cls(
            tokens=np.array([token for each in sampled for token in each.token_ids], dtype=np.int32),
            counts=np.array([len(each.token_ids) for each in sampled], dtype=np.int32),
            failed=np.array([each.error is not None for each in sampled], dtype=np.bool_),
            drafts=None if proposal is None else proposal.tokens,
            confidences=None if proposal is None else proposal.confidences,
        )


@dataclass(frozen=True, eq=False)
class CompletedStep:
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


@dataclass(frozen=True, eq=False)
class _Rows:
    """A step between its two tasks."""

    plan: StepPlan
    sequences: Sequence[RequestSequence]
    hidden: Tensor | Exception | None
    forward_ms: float = 0.0


@dataclass(eq=False)
class _Flight:
    rows: Future[_Rows]
    completed: Future[CompletedStep] | None = None


class StepPipeline:
    """At most ``depth`` steps, oldest first: 1 computes in the calling thread, 2 in a thread of its own.

    Args:
        runner: computes steps.
        depth: 1 or 2.
        timeout: seconds that any step may take.
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
        flight = _Flight(self._device.submit(_forward, self._runner, plan, sequences, before))
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
            if completed.done():  # the task's own
                raise
            raise StepTimeoutError("a step", self._timeout) from None

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
        flight.completed = self._device.submit(_sample, self._runner, flight.rows)


def _forward(
    runner: StepRunner,
    plan: StepPlan,
    sequences: Sequence[RequestSequence],
    before: Future[CompletedStep] | None,
) -> _Rows:
    """First task: fill in what the step before has decided, and compute the rows."""
    if before is not None:
        offer = before.result(timeout=0).offer  # its tasks were queued before this one
        resolved = plan.resolve(offer.tokens, offer.counts, offer.drafts, offer.confidences)
        by_id = dict(zip(plan.seq_ids.tolist(), sequences, strict=True))
        plan, sequences = resolved, [by_id[seq_id] for seq_id in resolved.seq_ids.tolist()]
    if plan.num_rows == 0:
        return _Rows(plan, sequences, None)
    begin = time.perf_counter()
    try:
        hidden = runner.forward(plan, sequences)
    except Exception as error:  # the step's sequences pay for it, the engine goes on
        return _Rows(plan, sequences, error)
    return _Rows(plan, sequences, hidden, 1e3 * (time.perf_counter() - begin))


def _sample(runner: StepRunner, future: Future[_Rows]) -> CompletedStep:
    """Second task: tokens and drafts from the rows."""
    rows, begin = future.result(timeout=0), time.perf_counter()
    result: StepResult | Exception
    if isinstance(rows.hidden, Exception):
        result = rows.hidden
    elif rows.hidden is None:
        result = StepResult(())
    else:
        try:
            result = runner.sample(rows.plan, rows.sequences, rows.hidden)
        except Exception as error:
            result = error
    offer = StepOffer.of(result, len(rows.plan.sampling))
    sample_ms = 1e3 * (time.perf_counter() - begin)
    return CompletedStep(rows.plan, rows.sequences, result, offer, rows.forward_ms, sample_ms)
