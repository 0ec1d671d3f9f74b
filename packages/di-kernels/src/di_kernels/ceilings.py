"""What this machine can do at most, with the threads and the instruction set in use.

A benchmark times one of these beside a kernel and divides. Only calls are made here; the caller holds the clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from di_kernels.ops.checks import check_number

MOST_ITERATIONS = 2**40


class MemoryRead:
    """A plain read of some buffers: every whole 64-byte line once, each thread one part of them in order.

    Args:
        buffers: uint8 ``[n]`` on the CPU, contiguous.

    Raises:
        TypeError, ValueError: a buffer is something else.
    """

    def __init__(self, buffers: Sequence[Tensor]) -> None:
        from di_kernels import _native

        self.buffers = tuple(buffers)  # kept alive: native code has their addresses
        self._native = _native.MemoryRead(list(buffers))

    def __call__(self) -> int:
        """Read them. Returns the exclusive or of their 64-bit words, behind the last whole line of a buffer none."""
        return int(self._native.run())


def dot_peak(iterations: int) -> int:
    """Run the bfloat16 dot, as the kernels use it, on every thread.

    Operands are in registers; on amx they are tiles loaded from the first cache.

    Returns:
        Floating-point operations that were done (a multiplication and an addition are two), of all threads.
    """
    from di_kernels import _native

    check_number("iterations", iterations, 0, MOST_ITERATIONS)
    return int(_native.dot_peak(iterations))


def multiply_add_peak(iterations: int) -> int:
    """The same with float32 multiply-adds."""
    from di_kernels import _native

    check_number("iterations", iterations, 0, MOST_ITERATIONS)
    return int(_native.multiply_add_peak(iterations))
