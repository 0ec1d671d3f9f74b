"""Timing on machines that do other work too: the least of many, and how much was done by others meanwhile."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

Call = Callable[[], object]

SLICE = 1e-3
"""Seconds that a call may take and still find many rounds in which nothing interrupts it."""
MOST_WAITING = 0.15
"""Of a call: a thread that waited longer for a processor was disturbed."""
THREADS = Path("/proc/self/task")
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


class LeastTime:
    """The least of some times. Each is announced by :meth:`begin`, where threads may wait for each other: then it is
    known whether other work disturbed even the least one."""

    def __init__(self) -> None:
        self.seconds = float("inf")
        self.disturbed = False
        """Whether a thread of this process had to wait long for a processor in the least time."""
        self._waits: dict[str, int] | None = None

    def begin(self) -> None:
        """What is timed next. Once a short time is known, a disturbed one, which is longer, counts nothing."""
        self._waits = thread_waits() if self.seconds > SLICE else None

    def end(self, taken: float) -> None:
        """What was timed took so many seconds."""
        if taken < self.seconds:
            self.seconds = taken
            self.disturbed = (
                taken > SLICE
                and self._waits is not None
                and longest_wait(self._waits, thread_waits()) > MOST_WAITING * taken
            )


class Least:
    """The least time of each of some calls, over many rounds.

    Args:
        calls: what to time.
        alone: whether they compute on the calling thread only and never wait: then a call that takes longer than
            :data:`SLICE` counts with the processor time of that thread.
    """

    def __init__(self, calls: Sequence[Call], alone: bool = False) -> None:
        self._calls = calls
        self._alone = alone
        self._times = [LeastTime() for _ in calls]

    @property
    def total(self) -> float:
        """Sum of the least times."""
        return sum(least.seconds for least in self._times)

    @property
    def disturbed(self) -> bool:
        """Whether other work disturbed even the least time of a call."""
        return any(least.disturbed for least in self._times)

    def round(self) -> None:
        """Time every call once."""
        for call, least in zip(self._calls, self._times, strict=True):
            if not self._alone:
                least.begin()
            worked, start = time.thread_time(), time.perf_counter()
            call()
            taken = time.perf_counter() - start
            if self._alone and taken > SLICE:
                taken = min(taken, time.thread_time() - worked)
            least.end(taken)

    def forget(self) -> None:
        """What was timed so far was a warm start."""
        self._times = [LeastTime() for _ in self._calls]


def thread_waits() -> dict[str, int]:
    """Nanoseconds that each thread of this process has waited for a processor so far, by its number; empty where the
    system does not tell."""
    waits = {}
    with suppress(OSError):
        for thread in os.listdir(THREADS):
            with suppress(OSError, IndexError):  # it has ended, or there is no such file
                waits[thread] = int((THREADS / thread / "schedstat").read_bytes().split()[1])
    return waits


def longest_wait(before: Mapping[str, int], after: Mapping[str, int]) -> float:
    """Seconds that one thread has waited between two calls of :func:`thread_waits` at most."""
    return 1e-9 * max((after[thread] - before[thread] for thread in after.keys() & before.keys()), default=0)


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
