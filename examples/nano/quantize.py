"""Weights in the stored formats of the release: FP8 in blocks, MXFP4 in rows, BF16, from float32.

Scales are powers of two. Source: checkpoint specification, 3.3 to 3.5.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from di_kernels.reference.formats import (
    e2m1_decode,
    e2m1_encode,
    e4m3_encode,
    pack_nibbles,
    ue8m0_decode,
    unpack_nibbles,
)
from di_model.config import SCALE_BLOCK
from di_model.tensors import Part, TensorSpec
from torch import Tensor

E4M3_MAX, E2M1_MAX = 448.0, 6.0
E8M0_BIAS = 127
LEAST_MAXIMUM = 1e-4
"""Blocks whose values are all smaller keep a scale that is no smaller than this asks for."""


def quantize(spec: TensorSpec, values: Tensor) -> dict[str, Tensor]:
    """The stored tensors of a weight: itself and, where its type has one, its scale.

    Args:
        spec: of the tensor in a quantized checkpoint.
        values: float32 in the logical shape.

    Raises ValueError for a type that weights are not stored in.
    """
    if spec.dtype == "F32":
        return {spec.name: values.float()}
    if spec.dtype == "BF16":
        return {spec.name: values.to(torch.bfloat16)}
    if spec.dtype == "F8_E4M3":
        rows = 1 if spec.part is Part.ENGRAM_TABLE else SCALE_BLOCK
        codes, scale = _fp8(values, rows)
        codes = codes.view(torch.float8_e4m3fn)
    elif spec.dtype == "I8":
        codes, scale = _mxfp4(values)
        codes = codes.view(torch.int8)
    else:
        raise ValueError(f"{spec.name} is of type {spec.dtype}; weights are F32, BF16, F8_E4M3 or I8")
    return {
        spec.name: codes,
        spec.name.removesuffix(".weight") + ".scale": scale.view(torch.float8_e8m0fnu),
    }


def restore(spec: TensorSpec, stored: Mapping[str, Tensor]) -> Tensor:
    """What :func:`quantize` kept of a weight: float32 in the logical shape."""
    data = stored[spec.name]
    scale = stored.get(spec.name.removesuffix(".weight") + ".scale")
    if scale is None or spec.dtype in ("F32", "BF16"):
        return data.float()
    values = data.float() if spec.dtype == "F8_E4M3" else e2m1_decode(unpack_nibbles(data.view(torch.uint8)))
    factors = scale.float().repeat_interleave(SCALE_BLOCK, dim=1)
    return values * factors.repeat_interleave(values.shape[0] // scale.shape[0], dim=0)


def _fp8(values: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """E4M3 codes and scale bytes, one for each ``rows`` x 32 block."""
    n, k = values.shape
    blocks = values.reshape(n // rows, rows, k // SCALE_BLOCK, SCALE_BLOCK)
    byte = _scale_byte(blocks.abs().amax(dim=(1, 3)), E4M3_MAX)
    scaled = blocks / ue8m0_decode(byte)[:, None, :, None]
    return e4m3_encode(scaled).reshape(n, k), byte


def _mxfp4(values: Tensor) -> tuple[Tensor, Tensor]:
    """Packed E2M1 codes and scale bytes, one for each row and 32 inputs.

    Of the smallest scale that cuts nothing and the one below it, the one of the lesser squared error is taken.
    """
    n, k = values.shape
    groups = values.reshape(n, k // SCALE_BLOCK, SCALE_BLOCK)
    whole = _scale_byte(groups.abs().amax(dim=2), E2M1_MAX)
    choices = []
    for byte in (whole, whole - 1):
        scale = ue8m0_decode(byte)[..., None]
        codes = e2m1_encode(groups / scale)
        choices.append((codes, byte, (e2m1_decode(codes) * scale - groups).square().sum(dim=2)))
    (codes, byte, error), (lower_codes, lower_byte, lower_error) = choices
    better = lower_error < error
    codes = torch.where(better[..., None], lower_codes, codes)
    return pack_nibbles(codes.reshape(n, k)), torch.where(better, lower_byte, byte)


def _scale_byte(maximum: Tensor, largest: float) -> Tensor:
    """Byte of the smallest power of two that brings ``maximum`` down to ``largest``."""
    exponent = torch.ceil(torch.log2(maximum.double().clamp(min=LEAST_MAXIMUM) / largest))
    return (exponent + E8M0_BIAS).to(torch.uint8)
