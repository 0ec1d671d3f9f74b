"""CPU kernels of the linear family."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels import _native
from di_kernels.ops.linear import LinearWeight


def linear(x: Tensor, weight: LinearWeight, quantize_input: bool, out_dtype: torch.dtype) -> Tensor:
    """See :func:`di_kernels.ops.linear.linear`."""
    y = torch.empty(x.shape[0], weight.shape[0], dtype=out_dtype)
    _native.linear(x.contiguous(), weight.format.value, weight.data, weight.scale, quantize_input, y)
    return y


def grouped_linear(x: Tensor, weight: LinearWeight, groups: int) -> Tensor:
    """See :func:`di_kernels.ops.linear.grouped_linear`."""
    y = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype)
    _native.grouped_linear(x.contiguous(), weight.format.value, weight.data, weight.scale, y)
    return y
