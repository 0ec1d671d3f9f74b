"""CPU kernels of the formats family.

A group with a NaN gets a NaN scale and codes of zero; so does a group with an infinity in FP8 and MXFP4, whose scales
could not reach it. FP4 saturates infinities to its largest value, as it does every number beyond it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels import _native
from di_kernels.cpu.arrays import as_rows, empty
from di_kernels.ops.formats import EntryFormat

_NATIVE = {EntryFormat.FP8: 0, EntryFormat.FP4: 1, EntryFormat.MXFP4: 2}


def encode(x: Tensor, entry: EntryFormat) -> tuple[Tensor, Tensor]:
    """See :func:`di_kernels.ops.formats.encode`."""
    *lead, dim = x.shape
    codes = empty(*lead, entry.value_bytes(dim), dtype=torch.uint8)
    scales = empty(*lead, entry.scale_bytes(dim), dtype=torch.uint8)
    _native.encode(as_rows(x).contiguous(), as_rows(codes), as_rows(scales), _NATIVE[entry])
    return codes, scales


def decode(codes: Tensor, scales: Tensor, entry: EntryFormat, dtype: torch.dtype) -> Tensor:
    """See :func:`di_kernels.ops.formats.decode`."""
    x = empty(*codes.shape[:-1], scales.shape[-1] * entry.group, dtype=dtype)
    _native.decode(as_rows(codes), as_rows(scales), as_rows(x), _NATIVE[entry])
    return x


def round_trip(x: Tensor, entry: EntryFormat) -> Tensor:
    """See :func:`di_kernels.ops.formats.round_trip`."""
    if entry is not EntryFormat.FP8:
        return decode(*encode(x, entry), entry, x.dtype)
    y = empty(*x.shape, dtype=x.dtype)
    _native.round_trip_fp8(as_rows(x).contiguous(), as_rows(y))
    return y
