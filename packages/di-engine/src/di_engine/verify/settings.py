"""Running a stretch of code with another number of threads and another instruction set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from di_kernels import instruction_set as instruction_set_in_use
from di_kernels import num_threads as threads_in_use
from di_kernels import set_instruction_set, set_num_threads


@contextmanager
def kernel_settings(*, num_threads: int, instruction_set: str | None = None) -> Iterator[None]:
    """Set what the kernels use, and torch's threads; afterwards, whatever happened meanwhile, as it was before.

    The models that verification runs are so small that one thread is faster than two that wait for each other.

    Args:
        num_threads: of the kernels and of torch.
        instruction_set: of the kernels; None: the one in use.

    Raises:
        ValueError: the kernels do not have them here.
    """
    kernels, tensors, instructions = threads_in_use(), torch.get_num_threads(), instruction_set_in_use()
    try:
        set_num_threads(num_threads)
        torch.set_num_threads(num_threads)
        set_instruction_set(instructions if instruction_set is None else instruction_set)
        yield
    finally:
        set_num_threads(kernels)
        torch.set_num_threads(tensors)
        set_instruction_set(instructions)
