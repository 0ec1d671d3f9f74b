"""CPU kernels of the topk family."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels import _native
from di_kernels.cpu.arrays import empty


def topk_indices(scores: Tensor, k: int, lengths: Tensor) -> Tensor:
    """See :func:`di_kernels.ops.topk.topk_indices`."""
    out = empty(scores.shape[0], k, dtype=torch.int32)
    if scores.stride(1) != 1:
        scores = scores.contiguous()
    _native.topk_indices(scores, lengths.contiguous(), out)
    return out
