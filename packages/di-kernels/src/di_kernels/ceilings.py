"""What this machine can do at most, with the threads and the instruction set in use.

A benchmark times one of these beside a kernel and divides. Only calls are made here; the caller holds the clock.
"""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels.ops.checks import check_dtype, check_number, check_shape

MOST_ITERATIONS = 2**40


def read_memory(buffer: Tensor) -> int:
    """Read every whole 64-byte line of a buffer once, each thread one part of it in order.

    Args:
        buffer: uint8 ``[n]``, contiguous.

    Returns:
        The exclusive or of its little-endian 64-bit words, behind the last whole line none.
    """
    from di_kernels import _native

    check_dtype("buffer", buffer, torch.uint8)
    check_shape("buffer", buffer, None)
    return int(_native.read_memory(buffer))


def dot_peak(iterations: int) -> int:
    """Run the bfloat16 dot, as the kernels use it, in registers on every thread.

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
