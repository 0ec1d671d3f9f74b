"""Number of threads the CPU kernels use. It changes time only, never a bit of a result."""

from __future__ import annotations


def num_threads() -> int:
    """Threads used by the CPU kernels; by default what the OpenMP runtime offers."""
    from di_kernels import _native

    return int(_native.num_threads())


def set_num_threads(count: int) -> None:
    """Use ``count`` threads in the CPU kernels from now on (at least 1), in this process."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count is {count!r}; it must be an integer of at least 1")
    from di_kernels import _native

    _native.set_num_threads(count)
