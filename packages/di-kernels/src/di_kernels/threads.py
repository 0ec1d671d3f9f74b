"""Number of threads the CPU kernels use. It changes time only, never a bit of a result."""

from __future__ import annotations

import os
import sys

from di_kernels.errors import shown

_MOST_WORK = 2**63 - 1


def num_threads() -> int:
    """Threads used by the CPU kernels; by default what the OpenMP runtime offers, and always 1 in a forked child."""
    from di_kernels import _native

    return int(_native.num_threads())


def set_num_threads(count: int, *, work_per_thread: int | None = None) -> None:
    """Use ``count`` threads in the CPU kernels from now on, in this process.

    Args:
        count: threads, 1 to 4096.
        work_per_thread: about the number of scalar operations that are worth waking a thread for; smaller work stays
            on the calling thread. None: the built-in measure. Tests lower it to 1, so that small shapes are split.

    Raises:
        ValueError: ``count`` is not an integer of 1 to 4096, or ``work_per_thread`` of 1 to 2^63 - 1.
    """
    from di_kernels import _native

    _check("count", count, _native.MAX_THREADS)
    if work_per_thread is not None:
        _check("work_per_thread", work_per_thread, _MOST_WORK)
    _native.set_num_threads(count, _native.WORK_PER_THREAD if work_per_thread is None else work_per_thread)


def pin_threads(on: bool) -> None:
    """Keep each thread of the CPU kernels on a processor of its own from now on, or let them move again.

    The thread that has the n-th part of a loop runs on the n-th processor that the process may use, which includes the
    thread that calls a kernel: it stays on its processor while this is in force, and so do threads and processes that
    are started from it. Let go, the calling thread moves at once, any other when it computes next. Worth it when
    nothing else needs the processors. Does nothing on a system without processor affinity, or where the process may use
    a processor with a number above 1023.

    Raises:
        TypeError: ``on`` is not a bool.
    """
    from di_kernels import _native

    if not isinstance(on, bool):
        raise TypeError(f"on is {shown(on)}; it must be True or False")
    _native.pin_threads(on)


def threads_are_pinned() -> bool:
    """Whether :func:`pin_threads` is in force."""
    from di_kernels import _native

    return _native.threads_are_pinned()


def _check(name: str, value: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{name} is {shown(value)}; it must be an integer from 1 to {most}")


def _keep_to_one_thread() -> None:
    """Torch shares the kernels' thread runtime, whose threads a forked child does not have."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_to_one_thread)
