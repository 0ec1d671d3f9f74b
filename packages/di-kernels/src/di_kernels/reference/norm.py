"""Reference of the norm family (backbone specification, 2.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels.ops.formats import EntryFormat
from di_kernels.reference.formats import round_trip


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See :func:`di_kernels.ops.norm.rms_norm`."""
    value = x.to(torch.float32)
    rstd = 1.0 / torch.sqrt(value.square().mean(dim=-1, keepdim=True) + eps)
    return ((value * rstd) * weight.to(torch.float32)).to(x.dtype)


def rms_norm_quantized(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See :func:`di_kernels.ops.norm.rms_norm_quantized`."""
    y = rms_norm(x, weight, eps)
    return y, round_trip(y, EntryFormat.FP8)
