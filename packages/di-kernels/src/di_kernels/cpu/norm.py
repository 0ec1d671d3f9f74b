"""CPU kernels of the norm family."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels import _native


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See :func:`di_kernels.ops.norm.rms_norm`."""
    y = torch.empty(x.shape, dtype=x.dtype)
    _native.rms_norm(x.contiguous(), weight.to(torch.float32), y, eps)
    return y
