"""Weights in their stored formats, made quickly: bytes are drawn, and scales chosen so that values stay moderate.

What a kernel takes to read and to decode does not depend on the values; these are drawn a hundred times faster than
the Gaussian ones of ``di_model.testing``, so that a layer of seven billion weights is there in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from di_kernels.ops.linear import LinearWeight
from di_model.tensors import Part, TensorSpec
from torch import Tensor

BLOCK_BYTES = 16 << 20
"""Bytes that are drawn at once; a larger tensor repeats them, at an offset that is not a multiple of its rows."""
SIGN_AND_MANTISSA, HALF = 0x8F, 0x30
"""Keeps E4M3 codes between 0.5 and 1.875 in magnitude."""
RMS_E4M3, RMS_E2M1 = 1.25, 2.93
BIAS = 127


class RandomBytes:
    """Draws tensors from one generator."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = np.random.default_rng(seed)
        self._block = torch.from_numpy(self._generator.integers(0, 256, BLOCK_BYTES, dtype=np.uint8))

    def bytes(self, *shape: int) -> Tensor:
        """uint8 of any value."""
        out = torch.empty(math.prod(shape), dtype=torch.uint8)
        filled = 0
        while filled < len(out):
            start = int(self._generator.integers(0, BLOCK_BYTES // 2))
            part = self._block[start : start + len(out) - filled]
            out[filled : filled + len(part)] = part
            filled += len(part)
        return out.view(*shape)

    def values(self, *shape: int, std: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Uniform values of a standard deviation."""
        drawn = self._generator.random(math.prod(shape), dtype=np.float32)
        return ((torch.from_numpy(drawn) - 0.5) * (std * math.sqrt(12))).to(dtype).view(*shape)

    def fp8(self, n: int, k: int) -> LinearWeight:
        """E4M3 codes and scales of a matrix whose rows have about unit length."""
        codes = self.bytes(n, k).bitwise_and_(SIGN_AND_MANTISSA).bitwise_or_(HALF)
        return LinearWeight.fp8(codes, _scales((n // 32, k // 32), k, RMS_E4M3))

    def mxfp4(self, n: int, k: int) -> LinearWeight:
        """E2M1 codes and scales of such a matrix."""
        return LinearWeight.mxfp4(self.bytes(n, k // 2), _scales((n, k // 32), k, RMS_E2M1))

    def bfloat16(self, n: int, k: int) -> LinearWeight:
        """Such a matrix in bfloat16."""
        return LinearWeight.dense(self.values(n, k, std=k**-0.5))

    def tensors(self, specs: Iterable[TensorSpec]) -> dict[str, Tensor]:
        """Every tensor of a model by its name, one-byte types as uint8."""
        return {spec.name: self._tensor(spec) for spec in specs}

    def _tensor(self, spec: TensorSpec) -> Tensor:
        inputs = spec.shape[-1]
        if spec.dtype == "F8_E4M3":
            return self.bytes(*spec.shape).bitwise_and_(SIGN_AND_MANTISSA).bitwise_or_(HALF)
        if spec.dtype == "I8":
            return self.bytes(*spec.shape)
        if spec.dtype == "F8_E8M0":
            of_codes = RMS_E2M1 if spec.part is Part.EXPERTS else RMS_E4M3
            return _scales(spec.shape, 32 * inputs, of_codes)
        dtype = torch.float32 if spec.dtype == "F32" else torch.bfloat16
        if spec.part is Part.NORM:
            return torch.ones(spec.shape, dtype=dtype)
        return self.values(*spec.shape, std=inputs**-0.5 if len(spec.shape) > 1 else 0.3, dtype=dtype)


def _scales(shape: tuple[int, ...], inputs: int, rms: float) -> Tensor:
    """UE8M0 scales that bring codes of that root mean square to rows of about unit length."""
    exponent = round(math.log2(inputs**-0.5 / rms))
    return torch.full(shape, BIAS + exponent, dtype=torch.uint8)
