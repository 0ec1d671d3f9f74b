"""CPU kernels of the linear family."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels import _native
from di_kernels.cpu.arrays import empty
from di_kernels.ops.linear import LinearWeight


def linear(x: Tensor, weight: LinearWeight, quantize_input: bool, out_dtype: torch.dtype) -> Tensor:
    """See :func:`di_kernels.ops.linear.linear`."""
    y = empty(x.shape[0], weight.shape[0], dtype=out_dtype)
    _native.linear(x.contiguous(), matrix(weight), quantize_input, y)
    return y


def grouped_linear(x: Tensor, weight: LinearWeight, groups: int) -> Tensor:
    """See :func:`di_kernels.ops.linear.grouped_linear`."""
    y = empty(x.shape[0], weight.shape[0], dtype=x.dtype)
    _native.grouped_linear(x.contiguous(), matrix(weight), y)
    return y


def pack(weight: LinearWeight, out: Tensor) -> None:
    """See :func:`di_kernels.packing.pack`."""
    _native.pack_weight(matrix(weight), out)


def matrix(weight: LinearWeight) -> tuple[int, int, Tensor, Tensor | None, int, int]:
    """The weight as the native module takes it."""
    packed = weight.packed_shape
    n, k = packed or weight.shape
    return weight.format._value_, int(packed is not None), weight.data, weight.scale, n, k
