"""Reference of the formats family: group quantizers and their inverses (cache specification, 4).

The element formats are those of torch where torch has them: ``float8_e4m3fn`` for values and FP4 scales,
``float8_e8m0fnu`` for power-of-two scales. E2M1 has no torch element type; its eight magnitudes stand below.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from di_kernels.ops.formats import EntryFormat

E4M3_MAX = 448.0
E2M1_MAX = 6.0
E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP8_MIN_AMAX = 1e-4
FP4_MIN_AMAX = 6 * 2.0**-9
MXFP4_MIN_AMAX = 6 * 2.0**-126
UE8M0_NAN = 0xFF
E4M3_NAN = 0x7F


def e4m3_encode(x: Tensor) -> Tensor:
    """E4M3 codes of float32 values: nearest, ties to even, saturating at 448: uint8 like ``x``."""
    # The clamp is explicit because torch versions differ in what a value above 448 becomes.
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def e4m3_decode(codes: Tensor) -> Tensor:
    """Float32 values of E4M3 codes (uint8 of any shape); 0x7F and 0xFF are NaN."""
    return codes.view(torch.float8_e4m3fn).to(torch.float32)


def ue8m0_decode(codes: Tensor) -> Tensor:
    """Float32 ``2^(b-127)`` of scale bytes (uint8 of any shape); 0xFF is NaN."""
    return codes.view(torch.float8_e8m0fnu).to(torch.float32)


def e2m1_encode(x: Tensor) -> Tensor:
    """E2M1 codes ``0..15`` (uint8) of float32 values: nearest, ties to the even code, saturating at 6."""
    magnitude = x.abs()
    code = torch.zeros_like(x, dtype=torch.uint8)
    for lower in range(7):
        middle = (E2M1_MAGNITUDES[lower] + E2M1_MAGNITUDES[lower + 1]) / 2
        # A tie goes to the even one of codes lower and lower + 1.
        above = magnitude >= middle if lower % 2 else magnitude > middle
        code = code + above.to(torch.uint8)
    return code + torch.signbit(x).to(torch.uint8) * 8


def e2m1_decode(codes: Tensor) -> Tensor:
    """Float32 values of E2M1 codes ``0..15`` (uint8 of any shape); code 8 is -0."""
    magnitude = torch.tensor(E2M1_MAGNITUDES, dtype=torch.float32, device=codes.device)[(codes & 7).long()]
    return torch.where(codes >= 8, -magnitude, magnitude)


def pack_nibbles(codes: Tensor) -> Tensor:
    """Two 4-bit codes a byte, the even element in the low nibble: ``[..., n]`` to ``[..., n/2]``."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """Inverse of :func:`pack_nibbles`."""
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)


def _groups(x: Tensor, size: int) -> Tensor:
    """Split the last dimension: ``[..., n]`` to ``[..., n/size, size]``."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def _ue8m0_ceil(s: Tensor) -> Tensor:
    """Byte of the smallest power of two not below ``s > 0`` (float32); NaN and infinity give NaN."""
    bits = s.view(torch.int32)
    byte = ((bits - 1) >> 23) + 1
    return torch.where(torch.isfinite(s), byte, UE8M0_NAN).to(torch.uint8)


def _power_of_two_inverse(scales: Tensor) -> Tensor:
    """Float32 ``2^(127-b)`` for scale bytes ``1..253``."""
    return ((254 - scales.to(torch.int32)) << 23).view(torch.float32)


def encode(x: Tensor, entry: EntryFormat) -> tuple[Tensor, Tensor]:
    """See :func:`di_kernels.ops.formats.encode`. The codes of a group with a NaN scale are 0."""
    groups = _groups(x.to(torch.float32), entry.group)
    amax = groups.abs().amax(dim=-1)
    if entry is EntryFormat.FP4:
        sixth = torch.tensor(1 / 6, dtype=torch.float32, device=x.device)
        limit = (amax.clamp(min=FP4_MIN_AMAX) * sixth).clamp(max=E4M3_MAX)
        scales = torch.where(amax.isnan(), E4M3_NAN, e4m3_encode(limit)).to(torch.uint8)
        scaled = groups / e4m3_decode(scales)[..., None]
        undefined = scales == E4M3_NAN
    elif entry is EntryFormat.MXFP4:
        scales = _ue8m0_ceil(amax.clamp(min=MXFP4_MIN_AMAX) / E2M1_MAX)
        scaled = groups * _power_of_two_inverse(scales)[..., None]
        undefined = scales == UE8M0_NAN
    else:
        scales = _ue8m0_ceil(amax.clamp(min=FP8_MIN_AMAX) / E4M3_MAX)
        scaled = groups * _power_of_two_inverse(scales)[..., None]
        undefined = scales == UE8M0_NAN
    scaled = torch.where(undefined[..., None], 0.0, scaled).flatten(-2)
    codes = e4m3_encode(scaled) if entry is EntryFormat.FP8 else pack_nibbles(e2m1_encode(scaled))
    return codes, scales


def decode(codes: Tensor, scales: Tensor, entry: EntryFormat, dtype: torch.dtype = torch.float32) -> Tensor:
    """See :func:`di_kernels.ops.formats.decode`."""
    values = e4m3_decode(codes) if entry is EntryFormat.FP8 else e2m1_decode(unpack_nibbles(codes))
    scale = e4m3_decode(scales) if entry is EntryFormat.FP4 else ue8m0_decode(scales)
    return (_groups(values, entry.group) * scale[..., None]).flatten(-2).to(dtype)


class _StraightThrough(torch.autograd.Function):
    """Quantize and de-quantize; the gradient passes as if nothing had been rounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, entry: EntryFormat) -> Tensor:
        codes, scales = encode(x, entry)
        return decode(codes, scales, entry, x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def round_trip(x: Tensor, entry: EntryFormat) -> Tensor:
    """``decode(encode(x))`` like ``x``, with a straight-through gradient; FLOAT32 changes nothing."""
    if entry is EntryFormat.FLOAT32:
        return x
    return cast(Tensor, _StraightThrough.apply(x, entry))  # type: ignore[no-untyped-call]


def encode_records(x: Tensor, entry: EntryFormat) -> Tensor:
    """See :func:`di_kernels.ops.formats.encode_records`."""
    if entry is EntryFormat.FLOAT32:
        return x.to(torch.float32)
    return torch.cat(encode(x, entry), dim=-1)


def decode_records(records: Tensor, entry: EntryFormat, dtype: torch.dtype = torch.float32) -> Tensor:
    """See :func:`di_kernels.ops.formats.decode_records`."""
    if entry is EntryFormat.FLOAT32:
        return records.to(dtype)
    bytes_per_group = entry.record_bytes(entry.group)
    dim = records.shape[-1] // bytes_per_group * entry.group
    values = entry.value_bytes(dim)
    # Reinterpreting bytes as torch's 8-bit floats needs contiguous memory.
    codes, scales = records[..., :values].contiguous(), records[..., values:].contiguous()
    return decode(codes, scales, entry, dtype)
