"""What the wrappers hand to the native module: results to fill, and rows that are dense in their last dimension."""

from __future__ import annotations

import torch
from torch import Tensor

_CPU = torch.device("cpu")


def empty(*shape: int, dtype: torch.dtype) -> Tensor:
    """A result of the kernels, not initialised: on the CPU, wherever torch makes tensors by default.

    Raises:
        MemoryError: the system has not so much.
    """
    try:
        # Sizes one by one: torch reads a tuple of them half as quickly.
        return torch.empty(*shape, dtype=dtype, device=_CPU)
    except RuntimeError as error:
        raise MemoryError(f"a result {list(shape)} of {dtype} is more than the system gives") from error


def as_rows(tensor: Tensor) -> Tensor:
    """``tensor [..., size]`` as ``[rows, size]``, each row dense; shares storage where the strides allow it."""
    size = tensor.shape[-1]
    rows = tensor.reshape(tensor.shape[:-1].numel(), size)
    return rows if size <= 1 or rows.stride(1) == 1 else rows.contiguous()
