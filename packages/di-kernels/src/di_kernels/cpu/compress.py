"""CPU kernels of the compress family."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels import _native
from di_kernels.cpu.arrays import empty
from di_kernels.ops.compress import PairRows


def compress_pairs(fresh: Tensor, ring: Tensor, rows: PairRows, dtype: torch.dtype) -> Tensor:
    """See :func:`di_kernels.ops.compress.compress_pairs`."""
    out = empty(rows.last.shape[0], fresh.shape[2], dtype=dtype)
    _native.compress_pairs(
        fresh.contiguous(),
        ring,
        rows.last.contiguous(),
        rows.first.contiguous(),
        rows.slot.contiguous(),
        rows.cell.contiguous(),
        out,
    )
    return out
