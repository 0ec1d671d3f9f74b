"""Running a stretch of code with another number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from di_kernels import num_threads, set_num_threads


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Use ``count`` threads in the kernels and in torch; afterwards, whatever happened meanwhile, as many as before.

    The models that verification runs are so small that one thread is faster than two that wait for each other.
    """
    kernels, tensors = num_threads(), torch.get_num_threads()
    set_num_threads(count)
    torch.set_num_threads(count)
    try:
        yield
    finally:
        set_num_threads(kernels)
        torch.set_num_threads(tensors)
