"""What an operation has to do at least: bytes of weights and caches to read, and floating-point operations.

Activations are not counted as bytes: a step's rows stay in the caches of the processor. A multiplication and an
addition are two operations. Softmax, norms and the decoding of weights are not counted: a ceiling leaves them out.
"""

from __future__ import annotations

from dataclasses import dataclass

from di_kernels.ops.formats import EntryFormat


@dataclass(frozen=True, slots=True)
class Work:
    """Of one call."""

    read: int
    """Bytes of weights, tables and caches."""
    flops: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.read + other.read, self.flops + other.flops)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the machine reached at most in the same run, with the same threads."""

    read: float
    """Bytes a second, of a plain read of the same buffers."""
    dot: float
    """Floating-point operations a second, of the bfloat16 dot of the instruction set."""

    def floor(self, work: Work) -> float:
        """Seconds that the work takes at least: the longer one of reading and computing."""
        return max(work.read / self.read, work.flops / self.dot)

    def memory_bound(self, work: Work) -> bool:
        """Whether reading is what takes longer."""
        return work.read / self.read >= work.flops / self.dot


def linear_work(weight_bytes: int, rows: int, n: int, k: int) -> Work:
    """``rows`` rows of ``k`` inputs through a matrix ``[n, k]`` that is stored in ``weight_bytes``."""
    return Work(weight_bytes, 2 * rows * n * k)


def attention_work(
    rows: int, heads: int, dim: int, keys: tuple[int, EntryFormat], entries: tuple[int, EntryFormat]
) -> Work:
    """Scores and values of ``heads`` heads over (number, format) of window keys and of entries a row; each record is
    key and value, and read once for all heads."""
    count = keys[0] + entries[0]
    read = sum(number * entry.record_bytes(dim) for number, entry in (keys, entries))
    return Work(rows * read, rows * heads * count * dim * 2 * 2)


def index_work(rows: int, heads: int, dim: int, entries: int) -> Work:
    """Scores of MXFP4 index keys: one dot a head and entry."""
    return Work(rows * entries * EntryFormat.MXFP4.record_bytes(dim), rows * entries * heads * dim * 2)
