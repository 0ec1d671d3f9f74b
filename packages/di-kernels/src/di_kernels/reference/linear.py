"""Reference of the linear family: matrices are expanded to plain values, then multiplied."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels.ops.checks import check_kind
from di_kernels.ops.formats import EntryFormat
from di_kernels.ops.linear import LinearWeight, WeightFormat
from di_kernels.reference.formats import e2m1_decode, e4m3_decode, round_trip, ue8m0_decode, unpack_nibbles


def dequantize(weight: LinearWeight, dtype: torch.dtype = torch.float32) -> Tensor:
    """The matrix ``[n, k]`` in ``dtype`` (checkpoint specification, 3.3 and 3.4).

    FP8: one scale per 32x32 block; MXFP4: one per row and 32 inputs. Every stored value is exact in bfloat16
    and in float32. Plain formats keep their gradient.
    """
    if weight.is_packed:
        weight = unpack(weight)
    if weight.scale is None:
        return weight.data.to(dtype)
    scale = ue8m0_decode(weight.scale.contiguous()).repeat_interleave(32, dim=1)
    if weight.format is WeightFormat.FP8:
        values = e4m3_decode(weight.data.contiguous())
        scale = scale.repeat_interleave(32, dim=0)
    else:
        values = e2m1_decode(unpack_nibbles(weight.data))
    return (values * scale).to(dtype)


def unpack(weight: LinearWeight) -> LinearWeight:
    """The matrix as the checkpoint stores it, from a packed one (``csrc/weight_layout.hpp``).

    Raises:
        TypeError, ValueError: ``weight`` is no packed weight.
    """
    check_kind("weight", weight, LinearWeight)
    if not weight.is_packed:
        raise ValueError(f"weight is {weight.format.name}, as stored; it must be packed")
    n, k = weight.shape
    blocks = -(-k // 32)
    words = {WeightFormat.FLOAT32: 32, WeightFormat.BFLOAT16: 16, WeightFormat.FP8: 8, WeightFormat.MXFP4: 4}
    size = blocks * words[weight.format]
    start = weight.data.shape[1] - size * 64
    scale, vectors = weight.data[:, :start], weight.data[:, start:]
    rows = vectors.reshape(-(-n // 16), size, 16, 4).transpose(1, 2).flatten(0, 1)[:n]
    if weight.format in (WeightFormat.FLOAT32, WeightFormat.BFLOAT16):
        dtype = torch.float32 if weight.format is WeightFormat.FLOAT32 else torch.bfloat16
        return LinearWeight.dense(rows.flatten().view(dtype).view(n, 32 * blocks)[:, :k].contiguous())
    rows = rows[:, :, [0, 2, 1, 3]]
    if weight.format is WeightFormat.FP8:
        return LinearWeight.fp8(rows.flatten(1), scale[::2, :blocks].contiguous())
    low, high = rows[:, :, ::2], rows[:, :, 1::2]  # nibbles of inputs 0, 2 and 1, 3 of four
    even, odd = (low & 15) | (high & 15) << 4, low >> 4 | (high & 0xF0)
    codes = torch.stack((even, odd), dim=3).flatten(1)
    scales = scale[:, : blocks * 16].reshape(-1, blocks, 16).transpose(1, 2).reshape(-1, blocks)
    return LinearWeight.mxfp4(codes, scales[:n].contiguous())


def accumulator(x: Tensor) -> torch.dtype:
    """Type in which products with ``x`` are summed.

    Bfloat16 products summed in float64 are exact for every practical row, so the one rounding that the
    formulas ask for is the only one. Float32 rows stay in float32, which is what that numerics means.
    """
    return torch.float64 if x.dtype == torch.bfloat16 else torch.float32


def linear(x: Tensor, weight: LinearWeight, quantize_input: bool, out_dtype: torch.dtype) -> Tensor:
    """See :func:`di_kernels.ops.linear.linear`."""
    if quantize_input:
        x = round_trip(x, EntryFormat.FP8)
    wide = accumulator(x)
    return (x.to(wide) @ dequantize(weight).to(wide).T).to(torch.float32).to(out_dtype)


def grouped_linear(x: Tensor, weight: LinearWeight, groups: int) -> Tensor:
    """See :func:`di_kernels.ops.linear.grouped_linear`."""
    wide = accumulator(x)
    matrices = dequantize(weight).to(wide).view(groups, -1, weight.shape[1])
    product = torch.einsum("tgk,gnk->tgn", x.to(wide), matrices)
    return product.flatten(1).to(torch.float32).to(x.dtype)
