"""Number formats of the checkpoint and the caches: E4M3, E2M1, UE8M0 and the three group quantizers.

Groups are consecutive elements of the last dimension. Formulas: cache specification, section 4. A group that holds a
NaN gets a NaN scale, so that it reads back as NaN; nothing is laundered into a number.
"""

from __future__ import annotations

import enum
from typing import cast

import torch
from torch import Tensor

from di_kernels.dispatch import kernel
from di_kernels.ops.checks import (
    ACTIVATIONS,
    check_dtype,
    check_kind,
    check_multiple,
    check_result_type,
    check_shape,
    check_strided,
)


class EntryFormat(enum.Enum):
    """How one vector of ``dim`` values is stored in a cache record (values first, then scales)."""

    FP8 = "fp8"
    """E4M3 values, one UE8M0 scale per 32: ``dim + dim/32`` bytes."""
    FP4 = "fp4"
    """E2M1 values (even element in the low nibble), one E4M3 scale per 16: ``dim/2 + dim/16`` bytes."""
    MXFP4 = "mxfp4"
    """E2M1 values, one UE8M0 scale per 32: ``dim/2 + dim/32`` bytes."""
    FLOAT32 = "float32"
    """Plain float32 values, for the float32 numerics."""

    @property
    def group(self) -> int:
        """Values that share one scale, 1 without scales; vector lengths are a multiple of it."""
        return {"fp8": 32, "fp4": 16, "mxfp4": 32, "float32": 1}[self.value]

    def value_bytes(self, dim: int) -> int:
        """Bytes of the values of one record."""
        return {"fp8": dim, "fp4": dim // 2, "mxfp4": dim // 2, "float32": 4 * dim}[self.value]

    def scale_bytes(self, dim: int) -> int:
        """Bytes of the scales of one record."""
        return 0 if self is EntryFormat.FLOAT32 else dim // self.group

    def record_bytes(self, dim: int) -> int:
        """Bytes of one record."""
        return self.value_bytes(dim) + self.scale_bytes(dim)


def encode(x: Tensor, entry: EntryFormat) -> tuple[Tensor, Tensor]:
    """Quantize vectors into codes and scales.

    Args:
        x: ``[..., dim]`` bfloat16 or float32; ``dim`` a multiple of 32 (16 for FP4).
        entry: FP8, FP4 or MXFP4.

    Returns:
        ``(codes, scales)``, uint8 ``[..., value_bytes]`` and uint8 ``[..., scale_bytes]``.
    """
    check_dtype("x", x, *ACTIVATIONS)
    _check_vectors("x", x)
    _check_quantized(entry)
    check_multiple("the last dimension of x", x.shape[-1], entry.group)
    return cast(tuple[Tensor, Tensor], kernel("formats", "encode", x)(x, entry))


def decode(codes: Tensor, scales: Tensor, entry: EntryFormat, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values of quantized vectors; exact in bfloat16 and in float32.

    Args:
        codes: uint8 ``[..., value_bytes]``.
        scales: uint8 ``[..., scale_bytes]``.
        entry: FP8, FP4 or MXFP4.
        dtype: bfloat16 or float32.

    Returns:
        ``[..., dim]`` of ``dtype``.
    """
    check_dtype("codes", codes, torch.uint8)
    check_dtype("scales", scales, torch.uint8)
    _check_vectors("codes", codes)
    check_shape("scales", scales, *codes.shape[:-1], None)
    _check_quantized(entry)
    check_result_type("dtype", dtype)
    return cast(Tensor, kernel("formats", "decode", codes)(codes, scales, entry, dtype))


def round_trip(x: Tensor, entry: EntryFormat) -> Tensor:
    """``decode(encode(x))`` in the element type of ``x``: what a reader of the quantized vector sees."""
    check_dtype("x", x, *ACTIVATIONS)
    _check_vectors("x", x)
    _check_quantized(entry)
    check_multiple("the last dimension of x", x.shape[-1], entry.group)
    return cast(Tensor, kernel("formats", "round_trip", x)(x, entry))


def encode_records(x: Tensor, entry: EntryFormat) -> Tensor:
    """Cache records of vectors ``[rows, dim]``: uint8 ``[rows, record_bytes]``, or ``x`` as float32 for FLOAT32."""
    check_dtype("x", x, *ACTIVATIONS)
    if entry is EntryFormat.FLOAT32:
        check_strided("x", x)
        return x.to(torch.float32)
    codes, scales = encode(x, entry)
    return torch.cat([codes, scales], dim=-1)


def decode_records(records: Tensor, entry: EntryFormat, dtype: torch.dtype = torch.float32) -> Tensor:
    """Inverse of :func:`encode_records`: ``[..., dim]`` of ``dtype``."""
    check_kind("entry", entry, EntryFormat)
    check_result_type("dtype", dtype)
    if entry is EntryFormat.FLOAT32:
        check_dtype("records", records, *ACTIVATIONS)
        check_strided("records", records)
        return records.to(dtype)
    check_dtype("records", records, torch.uint8)
    _check_vectors("records", records)
    size = records.shape[-1]
    dim = {
        EntryFormat.FP8: size * 32 // 33,
        EntryFormat.FP4: size * 16 // 9,
        EntryFormat.MXFP4: size * 32 // 17,
    }[entry]
    split = entry.value_bytes(dim)
    return decode(records[..., :split], records[..., split:], entry, dtype)


def _check_vectors(name: str, tensor: Tensor) -> None:
    check_strided(name, tensor)
    if tensor.ndim == 0:
        raise ValueError(f"{name} has shape []; expected [..., any]")


def _check_quantized(entry: EntryFormat) -> None:
    check_kind("entry", entry, EntryFormat)
    if entry is EntryFormat.FLOAT32:
        raise ValueError("entry is FLOAT32; only FP8, FP4 and MXFP4 have codes and scales")
