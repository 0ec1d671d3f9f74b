"""Timing a kernel beside its ceilings and a peer, in turns, so that all of them see the same machine.

Weights that are read more than computed with rotate through a pool that is much larger than the last-level cache, as
they do in a model. A figure is the least time of many, taken for each member of the pool apart and then averaged: two
allocations of one process may differ in how fast they can be read, and one lucky member must not stand for all. With
one thread, a call that takes longer than a time slice is timed by the processor time of the thread, which leaves out
what others ran on its core; with more threads nothing but a quiet machine helps: what was disturbed is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from di_kernels import ceilings, num_threads, set_num_threads
from torch import Tensor

from di_engine.benchmark.timing import Call, Least, without_collection
from di_engine.benchmark.work import Ceilings, Work

Buffers = tuple[Tensor, ...]

LEAST_ROUNDS = 4
DISTURBED = 0.85
"""Of the dot's peak."""
REPEATS = 4
"""Of each ceiling in a round: one that was disturbed every time would make what is compared with it look too good."""
SHORT_ROUND = 0.02
"""Seconds of a round of calls that is repeated as often: of more trials the least is less."""
DOT_SECONDS = 5e-3
"""Of a call of the dot: behind a read of memory, tiles (amx) need a millisecond or two to be at their peak."""
CACHE_SIZE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
USUAL_CACHE = 32 << 20
POOL_CACHES = 4
"""Last-level caches that a pool of weights fills."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The same result from another library."""

    name: str
    members: tuple[Call, ...]
    read: int
    """Bytes of weights that a call of it reads."""


@dataclass(frozen=True, slots=True)
class Case:
    """One operation at one size.

    Attributes:
        family: part of the interface it belongs to.
        name: of the operation, and of how its weights are stored.
        size: of what is kept: a matrix, a context, a vocabulary.
        rows: rows of activations.
        work: of one call.
        members: the call, once for each member of the pool.
        buffers: what each member reads, uint8 ``[n]``.
        peer: the same from another library.
    """

    family: str
    name: str
    size: str
    rows: int
    work: Work
    members: tuple[Call, ...]
    buffers: tuple[Buffers, ...]
    peer: Peer | None = None


class Recipe(NamedTuple):
    """How a case is made. A case holds its weights, so each is made when it is measured."""

    title: str
    make: Callable[[], Case]


@dataclass(frozen=True, slots=True)
class Reached:
    """A case with its times.

    Attributes:
        seconds: of a call.
        peer_seconds: of a call of the peer.
        ceilings: measured in the same rounds.
        rounds: how often each member was timed.
    """

    family: str
    name: str
    size: str
    rows: int
    threads: int
    work: Work
    seconds: float
    ceilings: Ceilings
    rounds: int
    peer: str | None
    peer_seconds: float | None
    peer_read: int | None
    disturbed: bool = False
    """Whether other work took so much that threads had to wait in the least times of the case or of a ceiling, or that
    the dot never ran at its peak meanwhile: neither times nor shares mean anything then."""

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return self.work.read / self.seconds

    @property
    def flops(self) -> float:
        """Floating-point operations a second."""
        return self.work.flops / self.seconds

    @property
    def of_floor(self) -> float:
        """Share of the ceiling that binds: 1 is as fast as the machine reads or computes."""
        return self.ceilings.floor(self.work) / self.seconds

    @property
    def peer_ratio(self) -> float | None:
        """How many times longer the peer takes."""
        return None if self.peer_seconds is None else self.peer_seconds / self.seconds


def measure(case: Case, seconds: float) -> Reached:
    """Time a case in rounds for about ``seconds`` seconds, at least :data:`LEAST_ROUNDS` rounds."""
    alone = num_threads() == 1
    calls = Least(case.members, alone)
    reads = Least([ceilings.MemoryRead(buffers) for buffers in case.buffers], alone)
    dots = DotCeiling(alone)
    peers = Least(case.peer.members if case.peer is not None else (), alone)
    rounds, deadline = 0, time.perf_counter() + seconds
    with torch.inference_mode(), without_collection():
        for least in (calls, peers):
            least.round()
        often = REPEATS if calls.total < SHORT_ROUND else 1
        for least in (calls, peers):
            least.forget()
        while rounds < LEAST_ROUNDS or time.perf_counter() < deadline:
            peers.round()
            for repeat in range(REPEATS):
                if repeat < often:
                    calls.round()
                reads.round()
                dots.round()
            rounds += 1
    read_bytes = sum(buffer.numel() // 64 * 64 for buffers in case.buffers for buffer in buffers)
    found = Ceilings(read=read_bytes / reads.total, dot=dots.flops)
    return Reached(
        family=case.family,
        name=case.name,
        size=case.size,
        rows=case.rows,
        threads=num_threads(),
        work=case.work,
        seconds=calls.total / len(case.members),
        ceilings=found,
        rounds=rounds,
        peer=None if case.peer is None else case.peer.name,
        peer_seconds=None if case.peer is None else peers.total / len(case.peer.members),
        peer_read=None if case.peer is None else case.peer.read,
        disturbed=any(least.disturbed for least in (calls, peers, reads, dots)),
    )


class DotCeiling(Least):
    """The dot of the instruction set and the threads in use, for about :data:`DOT_SECONDS` a call."""

    def __init__(self, alone: bool = False) -> None:
        iterations, taken = 250, 0.0
        while taken < DOT_SECONDS / 4:
            iterations *= 4
            start = time.perf_counter()
            self._operations = ceilings.dot_peak(iterations)
            taken = time.perf_counter() - start
        self._iterations = max(1, round(iterations * DOT_SECONDS / taken))
        self._operations = self._operations * self._iterations // iterations
        super().__init__([lambda: ceilings.dot_peak(self._iterations)], alone)

    @property
    def flops(self) -> float:
        """Floating-point operations a second, of the least time."""
        return self._operations / self.total


def settle(found: Sequence[Reached]) -> list[Reached]:
    """The measurements of a run with the dot peak that its best moment had: the dot has one peak, whatever it stands
    beside. Where a case saw much less of it, neither its times nor its read rate are to be trusted."""
    peaks = dot_peaks((reached.threads, reached.ceilings.dot) for reached in found)
    return [
        replace(
            reached,
            ceilings=replace(reached.ceilings, dot=peaks[reached.threads]),
            disturbed=reached.disturbed or reached.ceilings.dot < DISTURBED * peaks[reached.threads],
        )
        for reached in found
    ]


def dot_peaks(dots: Iterable[tuple[int, float]]) -> dict[int, float]:
    """The best of what the dot reached with each number of threads."""
    peaks: dict[int, float] = {}
    for threads, dot in dots:
        peaks[threads] = max(peaks.get(threads, 0.0), dot)
    return peaks


def as_bytes(*tensors: Tensor | None) -> Buffers:
    """Tensors that are dense in memory as buffers to read."""
    return tuple(tensor.view(torch.uint8).view(-1) for tensor in tensors if tensor is not None)


def pool_members(member_bytes: int, rows: int) -> int:
    """How many weights a pool holds: enough to fill :data:`POOL_CACHES` last-level caches, where weights are read; a
    few where many rows make each of them a matter of arithmetic."""
    if rows > 16:
        return 3
    return max(2, -(-POOL_CACHES * last_level_cache() // max(1, member_bytes)))


def last_level_cache() -> int:
    """Bytes of the last-level cache, or a usual size where the machine does not tell."""
    try:
        text = CACHE_SIZE.read_text(encoding="ascii").strip()
        return int(text.removesuffix("K")) << 10
    except (OSError, ValueError):
        return USUAL_CACHE


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Kernels and torch on ``count`` threads."""
    ours, torchs = num_threads(), torch.get_num_threads()
    set_num_threads(count)
    torch.set_num_threads(count)
    try:
        yield
    finally:
        set_num_threads(ours)
        torch.set_num_threads(torchs)
