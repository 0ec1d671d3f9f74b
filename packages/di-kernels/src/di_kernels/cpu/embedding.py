"""CPU kernels of the embedding family."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels import _native
from di_kernels.cpu.arrays import empty


def embed(ids: Tensor, table: Tensor, dtype: torch.dtype) -> Tensor:
    """See :func:`di_kernels.ops.embedding.embed`."""
    y = empty(ids.shape[0], table.shape[-1], dtype=dtype)
    _native.embed(ids.contiguous(), table, y)
    return y
