"""CPU kernels of the norm family."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels import _native
from di_kernels.cpu.arrays import empty


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See :func:`di_kernels.ops.norm.rms_norm`."""
    y = empty(*x.shape, dtype=x.dtype)
    _native.rms_norm(x.contiguous(), weight.to(torch.float32), y, eps, None)
    return y


def rms_norm_quantized(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See :func:`di_kernels.ops.norm.rms_norm_quantized`."""
    y, quantized = empty(*x.shape, dtype=x.dtype), empty(*x.shape, dtype=x.dtype)
    _native.rms_norm(x.contiguous(), weight.to(torch.float32), y, eps, quantized)
    return y, quantized
