"""Packed weights: groups of 16 rows interleaved, so that a kernel reads one stream.

A packed matrix gives the bits of the matrix as stored; only the time differs. Layout: ``csrc/weight_layout.hpp``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from di_kernels import _native
from di_kernels.dispatch import kernel
from di_kernels.memory import allocate
from di_kernels.ops.checks import (
    check_dtype,
    check_kind,
    check_multiple,
    check_number,
    check_shape,
    check_strided,
)
from di_kernels.ops.linear import MOST_SIZE, LinearWeight, WeightFormat
from di_kernels.ops.moe import ExpertWeights
from di_kernels.reference.linear import unpack

__all__ = [
    "LAYOUT_VERSION",
    "pack",
    "pack_all",
    "pack_experts",
    "packed_from",
    "packed_shape",
    "unpack",
]

LAYOUT_VERSION = 1
"""Changes when the bytes of a packed matrix change: what was written under another number is not read."""


def packed_shape(format: WeightFormat, n: int, k: int) -> tuple[int, int]:
    """``(groups, bytes)`` of the uint8 data of a packed matrix ``[n, k]``; the bytes are a multiple of 64.

    Raises:
        ValueError: no matrix of this format has such a shape: FP8 and MXFP4 hold whole groups of scales.
    """
    check_kind("format", format, WeightFormat)
    for name, size in (("n", n), ("k", k)):
        check_kind(name, size, int)
        check_number(name, size, 0, MOST_SIZE)
    if format in (WeightFormat.FP8, WeightFormat.MXFP4):
        check_multiple(f"columns of an {format.name} weight", k, 32)
    if format is WeightFormat.FP8:
        check_multiple("rows of an FP8 weight", n, 32)
    return -(-n // 16), _native.packed_group_bytes(format.value, k)


def packed_from(data: Tensor, format: WeightFormat, n: int, k: int) -> LinearWeight:
    """The packed matrix ``[n, k]`` that lies at the start of ``data``, uint8 ``[bytes]``, dense, which is shared.

    Raises:
        ValueError: ``data`` is too short, or no matrix of this format has such a shape.
    """
    groups, width = packed_shape(format, n, k)
    _check_bytes("data", data)
    if data.numel() < groups * width:
        raise ValueError(
            f"data has {data.numel()} bytes; a packed {format.name} [{n}, {k}] has {groups * width}"
        )
    return LinearWeight(format, data[: groups * width].view(groups, width), None, (n, k))


def pack(weight: LinearWeight, out: Tensor | None = None) -> LinearWeight:
    """``weight`` packed, or itself if it is packed already.

    Args:
        weight: ``[n, k]`` on the CPU.
        out: where to write, uint8 ``[bytes]``, dense, at least as many as :func:`packed_shape` says; None: new memory.
    """
    check_kind("weight", weight, LinearWeight)
    if weight.is_packed:
        return weight
    n, k = weight.shape
    groups, width = packed_shape(weight.format, n, k)
    if out is not None:
        _check_bytes("out", out)
        if out.numel() < groups * width:
            raise ValueError(f"out has {out.numel()} bytes; the packed weight has {groups * width}")
    packing = kernel("linear", "pack", weight.data)
    packed = packed_from(allocate(groups * width) if out is None else out, weight.format, n, k)
    packing(weight, packed.data)
    return packed


def _check_bytes(name: str, tensor: Tensor) -> None:
    check_dtype(name, tensor, torch.uint8)
    check_strided(name, tensor)
    check_shape(name, tensor, None)
    if not tensor.is_contiguous():
        raise ValueError(f"{name} has stride {tensor.stride(0)}; it must be contiguous")


def pack_experts(bank: ExpertWeights) -> ExpertWeights:
    """``bank`` packed into one piece of memory, the matrices of an expert side by side."""
    check_kind("bank", bank, ExpertWeights)
    matrices = [m for expert in zip(bank.w1, bank.w3, bank.w2, strict=True) for m in expert]
    packed = pack_all(matrices)
    return ExpertWeights(tuple(packed[::3]), tuple(packed[1::3]), tuple(packed[2::3]))


def pack_all(weights: Sequence[LinearWeight]) -> list[LinearWeight]:
    """Each of ``weights`` packed, all in one piece of memory."""
    check_kind("weights", weights, Sequence)
    for place, weight in enumerate(weights):
        check_kind(f"weights[{place}]", weight, LinearWeight)
    sizes = [0 if w.is_packed else _nbytes(w) for w in weights]
    memory, place = allocate(sum(sizes)), 0
    packed = []
    for weight, size in zip(weights, sizes, strict=True):
        packed.append(pack(weight, memory[place : place + size]))
        place += size
    return packed


def _nbytes(weight: LinearWeight) -> int:
    groups, width = packed_shape(weight.format, *weight.shape)
    return groups * width
