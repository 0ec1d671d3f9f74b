"""Timing on machines that do other work too: the least of many, and how much was done by others meanwhile."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BUSY_FIELDS = (0, 1, 2, 5, 6, 7)
"""Of the first line of /proc/stat: user, nice, system, irq, softirq, steal; idle and iowait are not work."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one piece of work, timed ``count`` times. Disturbance only adds, so the minimum is the measure."""

    count: int
    minimum: float
    p10: float
    median: float


def summarize_timings(seconds: Sequence[float]) -> Timing:
    """The figures of at least one timed run."""
    ordered = sorted(seconds)
    return Timing(len(ordered), ordered[0], ordered[len(ordered) // 10], ordered[len(ordered) // 2])


def time_calls(call: Callable[[], float | None], count: int) -> list[float]:
    """Seconds of each of ``count`` calls, without garbage collection between them.

    A call that returns a number was timed by itself: that many seconds count.
    """
    seconds = []
    with without_collection():
        for _ in range(count):
            start = time.perf_counter()
            own = call()
            seconds.append(time.perf_counter() - start if own is None else own)
    return seconds


@contextmanager
def without_collection() -> Iterator[None]:
    """Collect garbage now, and not again inside."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True, slots=True)
class ForeignLoad:
    """What other processes did while something was measured."""

    cores: float
    """Cores that they kept busy, on average."""
    of: int
    """Cores of the machine."""

    @property
    def disturbs(self) -> bool:
        """Whether less than one core was left over: then even minima may be too high."""
        return self.cores > self.of - 1


class LoadMeter:
    """Busy time of the machine less that of this process and of its children that have ended."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._busy = _busy_seconds()
        self._own = _own_seconds()

    def read(self) -> ForeignLoad | None:
        """Since the meter was made; None where the machine does not tell (no /proc/stat), or too soon to say."""
        busy, wall = _busy_seconds(), time.monotonic() - self._start
        if busy is None or self._busy is None or wall < 0.1:  # the kernel counts in hundredths of a second
            return None
        foreign = busy - self._busy - (_own_seconds() - self._own)
        return ForeignLoad(max(0.0, foreign / wall), os.cpu_count() or 1)


def _busy_seconds() -> float | None:
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
    except OSError:
        return None
    return sum(int(first[field]) for field in BUSY_FIELDS) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
