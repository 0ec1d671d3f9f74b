"""How long the device waits for the scheduler: synchronous, and with steps planned ahead.

The stub device keeps a core busy, which a real device does not; so when both work at once, it and the host are pinned
to two different cores. Where another process takes one of the two, the host's work shows whatever the scheduler does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from di_scheduler import Scheduler, SchedulerConfig, SequenceLimits, StepPlan
from di_scheduler.testing import StubDevice

from di_engine.benchmark.timing import Timing, summarize_timings, without_collection

STEP_US = 1000.0
"""Microseconds that the stub device computes a step."""
SEGMENT_STEPS = 3
"""Steps after which the time is read: few, so that some segments see no other process."""
ANY_CORE: frozenset[int] = frozenset()
PROMPT_TOKENS = 32
BLOCK_SIZE = 128


@dataclass(frozen=True, slots=True)
class HostWork:
    """Time of a step that the stub device spent without computing."""

    asynchronous: bool
    running: int
    """Requests that decode."""
    visible: Timing
    """Seconds a step, over segments of :data:`SEGMENT_STEPS` steps."""


def measure_host_work(
    running: Sequence[int], segments: int, progress: Callable[[HostWork], None] = lambda work: None
) -> list[HostWork]:
    """Decode on a stub device and report what lies between its steps; ``progress`` is called after each measurement."""
    device_core, host_core = _two_cores()
    found = []
    for count in running:
        for asynchronous in (False, True):
            with _pinned(
                device_core if asynchronous else ANY_CORE
            ):  # where the device's thread begins, it stays
                device = StubDevice(base_us=STEP_US)
            with _pinned(host_core if asynchronous else ANY_CORE), without_collection():
                loop = _StubLoop(device, count, segments, asynchronous)
                seconds = [loop.segment() for _ in range(segments)]
            work = HostWork(asynchronous, count, summarize_timings(seconds))
            found.append(work)
            progress(work)
    return found


def _two_cores() -> tuple[frozenset[int], frozenset[int]]:
    """Where the device and where the host runs: two cores if this process may use and choose two."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return (frozenset(usable[:1]), frozenset(usable[1:2])) if len(usable) > 1 else (ANY_CORE, ANY_CORE)


@contextmanager
def _pinned(cores: frozenset[int]) -> Iterator[None]:
    """This thread, and threads that it starts, on these cores."""
    if cores == ANY_CORE:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class _StubLoop:
    """``running`` requests that decode on a stub device."""

    def __init__(self, device: StubDevice, running: int, segments: int, asynchronous: bool) -> None:
        tokens = (segments + 1) * SEGMENT_STEPS + 8
        blocks = -(-(PROMPT_TOKENS + tokens) // BLOCK_SIZE) + 1
        self._scheduler = Scheduler(
            SchedulerConfig(
                num_blocks=running * (blocks + 1) + 1,
                num_slots=running + 1,
                block_size=BLOCK_SIZE,
                max_num_seqs=running,
                max_num_batched_tokens=running * PROMPT_TOKENS,
                max_model_len=PROMPT_TOKENS + tokens,
                max_steps_in_flight=2 if asynchronous else 1,
            )
        )
        self._asynchronous = asynchronous
        self._device = device
        prompt = np.ones(PROMPT_TOKENS, np.int32)
        for seq_id in range(running):
            self._scheduler.add(seq_id, prompt, SequenceLimits(max_tokens=tokens, ignore_eos=True))
        self.segment()  # the prompts, and a warm start

    def segment(self) -> float:
        """Some steps; the seconds between two of them, on average."""
        self._device.reset_times()
        if self._asynchronous:
            self._planned_ahead()
        else:
            self._in_turns()
        return (self._device.span_seconds - self._device.busy_seconds) / (SEGMENT_STEPS - 1)

    def _in_turns(self) -> None:
        for _ in range(SEGMENT_STEPS):
            self._submit()
            self._commit()

    def _planned_ahead(self) -> None:
        self._submit()
        for _ in range(SEGMENT_STEPS - 1):
            self._submit()
            self._commit()
        self._commit()

    def _submit(self) -> StepPlan:
        plan = self._scheduler.plan()
        self._device.submit(plan)
        return plan

    def _commit(self) -> None:
        result = self._device.wait()
        self._scheduler.commit(result.tokens, result.counts, drafts=result.drafts)
