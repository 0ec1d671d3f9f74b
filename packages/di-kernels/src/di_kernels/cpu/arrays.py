"""How the wrappers hand tensors to the native module: rows that are dense in their last dimension."""

from __future__ import annotations

from torch import Tensor


def as_rows(tensor: Tensor) -> Tensor:
    """``tensor [..., size]`` as ``[rows, size]``, each row dense; shares storage where the strides allow it."""
    size = tensor.shape[-1]
    rows = tensor.reshape(tensor.shape[:-1].numel(), size)
    return rows if size <= 1 or rows.stride(1) == 1 else rows.contiguous()
