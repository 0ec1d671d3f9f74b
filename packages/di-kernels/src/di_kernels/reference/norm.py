"""Reference of the norm family (backbone specification, 2.2)."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See :func:`di_kernels.ops.norm.rms_norm`."""
    value = x.to(torch.float32)
    rstd = 1.0 / torch.sqrt(value.square().mean(dim=-1, keepdim=True) + eps)
    return ((value * rstd) * weight.to(torch.float32)).to(x.dtype)
