"""Random values of one stored tensor, drawn from a generator that its own name seeds.

The same weight comes out of quantized and BF16 checkpoints: a quantized value always fits BF16. Formats:
checkpoint spec, 3.3 to 3.5.
"""

from __future__ import annotations

import math
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from di_model.config import SCALE_BLOCK
from di_model.tensors import Part, TensorSpec

E4M3_MAX = 448.0
E2M1_MAX = 6.0
E8M0_BIAS = 127
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
AMAX_FLOOR = 1e-4
Array = npt.NDArray[Any]


class Spread(NamedTuple):
    """Normal distribution of a tensor's values."""

    mean: float
    std: float


# Statistics of a calm model: what writes into the residual stream is small, so that layers do not blow up.
_BY_SUFFIX = {
    "_base": Spread(0.0, 0.7),
    "_scale": Spread(1.0, 0.2),
    "attn_sink": Spread(0.0, 1.0),
    "gate.bias": Spread(0.0, 0.3),
    "gate.bias_vl": Spread(0.0, 0.3),
    "q_weight": Spread(1.5, 0.3),
    "k_weight": Spread(1.5, 0.3),
    "embed.weight": Spread(0.0, 1.0),
    ".bias": Spread(0.0, 0.1),
    "image_start": Spread(0.0, 1.0),
    "image_end": Spread(0.0, 1.0),
    "image_newline": Spread(0.0, 1.0),
}
_GAIN_BY_SUFFIX = {
    "wo_b.weight": 0.25,
    "w2.weight": 0.25,
    "w1.weight": 1.5,
    "w3.weight": 1.5,
    "attn.wq_b.weight": 1.5,
    "gate.weight": 1.5,
    "head.weight": 2.0,
}


def spread(spec: TensorSpec) -> Spread:
    """Distribution of the tensor's values: gains near 1 for norms, ``1/sqrt(inputs)`` for matrices."""
    if spec.part is Part.NORM or spec.name.endswith(("norm.weight", "norm1.weight", "norm2.weight")):
        return Spread(1.0, 0.15)
    for suffix, found in _BY_SUFFIX.items():
        if spec.name.endswith(suffix):
            return found
    gain = next((g for suffix, g in _GAIN_BY_SUFFIX.items() if spec.name.endswith(suffix)), 1.0)
    return Spread(0.0, gain / math.sqrt(_logical(spec)[-1]))


def _logical(spec: TensorSpec) -> tuple[int, ...]:
    """Shape with two columns for each byte of MXFP4."""
    return (*spec.shape[:-1], 2 * spec.shape[-1]) if spec.dtype == "I8" else spec.shape


class RandomWeights:
    """Draws tensors of a checkpoint. Which form they are stored in does not change their values."""

    def __init__(self, seed: int, quantized: bool) -> None:
        self.seed = seed
        self.quantized = quantized

    def draw(self, spec: TensorSpec) -> dict[str, Tensor]:
        """The stored tensors of a weight, given its spec in the quantized form: itself, and its scale if any."""
        generator = np.random.default_rng([self.seed, zlib.crc32(spec.name.encode())])
        mean, std = spread(spec)
        values = mean + std * generator.standard_normal(_logical(spec))
        if spec.dtype == "F32":
            return {spec.name: torch.from_numpy(values).to(torch.float32)}
        if spec.dtype == "BF16":
            return {spec.name: torch.from_numpy(values).to(torch.bfloat16)}
        if spec.dtype == "I8":
            return self._mxfp4(spec, values)
        # Neighbouring blocks of clearly different magnitude: a wrong scale index shows.
        factors = 2.0 ** generator.integers(-1, 2, [math.ceil(n / SCALE_BLOCK) for n in spec.shape])
        return self._fp8(spec, values * _expand(factors, SCALE_BLOCK, SCALE_BLOCK, spec.shape))

    def _fp8(self, spec: TensorSpec, values: Array) -> dict[str, Tensor]:
        rows = 1 if spec.part is Part.ENGRAM_TABLE else SCALE_BLOCK
        n, k = values.shape
        amax = np.abs(values).reshape(n // rows, rows, k // SCALE_BLOCK, SCALE_BLOCK).max(axis=(1, 3))
        exponent = _exponent(amax, E4M3_MAX)
        full = _expand(2.0**exponent, rows, SCALE_BLOCK, values.shape)
        codes = torch.from_numpy(values / full).to(torch.float32).to(torch.float8_e4m3fn)
        return self._stored(spec, codes, codes.to(torch.float64).numpy() * full, exponent)

    def _mxfp4(self, spec: TensorSpec, values: Array) -> dict[str, Tensor]:
        n, k = values.shape
        amax = np.abs(values).reshape(n, k // SCALE_BLOCK, SCALE_BLOCK).max(axis=2)
        exponent = _exponent(amax, E2M1_MAX)
        full = _expand(2.0**exponent, 1, SCALE_BLOCK, values.shape)
        magnitude = np.searchsorted((E2M1[1:] + E2M1[:-1]) / 2, np.abs(values / full))
        codes = (magnitude | (np.signbit(values) << 3)).astype(np.uint8)
        packed = torch.from_numpy(codes[:, 0::2] | codes[:, 1::2] << 4).view(torch.int8)
        return self._stored(spec, packed, np.copysign(E2M1[magnitude], values) * full, exponent)

    def _stored(self, spec: TensorSpec, codes: Tensor, values: Array, exponent: Array) -> dict[str, Tensor]:
        if not self.quantized:
            return {spec.name: torch.from_numpy(values).to(torch.bfloat16)}
        scale = torch.from_numpy((exponent + E8M0_BIAS).astype(np.uint8)).view(torch.float8_e8m0fnu)
        return {spec.name: codes, spec.name.removesuffix(".weight") + ".scale": scale}


def _exponent(amax: Array, largest: float) -> Array:
    """Exponent of the smallest power of two that brings ``amax`` down to ``largest``."""
    return np.asarray(np.ceil(np.log2(np.maximum(amax, AMAX_FLOOR) / largest)))


def _expand(blocks: Array, rows: int, columns: int, shape: tuple[int, ...]) -> Array:
    """One value a block, repeated over the block."""
    return blocks.repeat(rows, axis=0).repeat(columns, axis=1)[: shape[0], : shape[1]]
