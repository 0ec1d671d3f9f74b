"""Rotary position embedding, interleaved pairs, on the last dimensions of a vector (attention specification, 3.5)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from di_kernels.dispatch import kernel
from di_kernels.errors import shown
from di_kernels.ops.checks import (
    ACTIVATIONS,
    check_dtype,
    check_integer,
    check_kind,
    check_multiple,
    check_number,
    check_place,
    check_positive,
    check_readable,
    check_shape,
    check_strided,
)

_SMALLEST, _LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
_MOST_POSITIONS = 2**31  # what int32 positions reach
_MOST_DIMENSIONS = 2**20


@dataclass(frozen=True)
class YarnScaling:
    """YaRN parameters; frequencies are blended once and used at every context length.

    Raises ValueError unless ``factor`` is at least 1, the others are positive and ``beta_fast`` is not below
    ``beta_slow``, all in the range of float32; TypeError for what is no number.
    """

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        check_number("factor", self.factor, 1, _LARGEST)
        check_number("beta_slow", self.beta_slow, _SMALLEST, _LARGEST)
        check_number("beta_fast", self.beta_fast, self.beta_slow, _LARGEST)
        check_number(
            "original_max_position_embeddings", self.original_max_position_embeddings, 1, _MOST_POSITIONS
        )


def rope_frequencies(dim: int, theta: float, yarn: YarnScaling | None = None) -> Tensor:
    """Inverse frequencies, float32 ``[dim/2]``; every step in float32, as the released tables are.

    Args:
        dim: number of rotary dimensions, even, at most 2^20.
        theta: base, positive and in the range of float32; above 1 with ``yarn``.
        yarn: blending of interpolated and plain frequencies, or None for plain ones.

    Raises:
        ValueError: ``dim`` or ``theta`` out of range; TypeError where one is no number.
    """
    check_positive("dim", dim, _MOST_DIMENSIONS)
    check_multiple("dim", dim, 2)
    check_number("theta", theta, _SMALLEST, _LARGEST)
    exponent = torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim
    power = torch.tensor(theta, dtype=torch.float32, device="cpu") ** exponent
    plain = 1.0 / power
    if yarn is None:
        return plain
    check_kind("yarn", yarn, YarnScaling)
    if theta <= 1:
        raise ValueError(f"theta is {theta}; with YaRN it must be above 1")

    def correction(rotations: float) -> float:
        return (
            dim
            * math.log(yarn.original_max_position_embeddings / (rotations * 2 * math.pi))
            / (2 * math.log(theta))
        )

    low = max(math.floor(correction(yarn.beta_fast)), 0)
    high = float(min(math.ceil(correction(yarn.beta_slow)), dim - 1))
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32, device="cpu") - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    return 1.0 / (yarn.factor * power) * (1 - keep) + plain * keep


def rope_table(frequencies: Tensor, positions: int) -> Tensor:
    """Cosines then sines for positions ``0..positions-1``: float32 ``[positions, dim]``.

    Args:
        frequencies: float32 ``[dim/2]`` of :func:`rope_frequencies`, finite.
        positions: at least 0.
    """
    check_dtype("frequencies", frequencies, torch.float32)
    check_shape("frequencies", frequencies, None)
    check_readable("frequencies", frequencies)
    if not bool(frequencies.isfinite().all()):
        raise ValueError(f"frequencies is {shown(frequencies.tolist())}; they must be finite")
    check_integer("positions", positions, 0, _MOST_POSITIONS)
    return rope_rows(frequencies, torch.arange(positions, dtype=torch.int64, device=frequencies.device))


def rope_rows(frequencies: Tensor, positions: Tensor) -> Tensor:
    """Rows of :func:`rope_table` at the given positions (int32 or int64 ``[rows]``): float32 ``[rows, dim]``.

    The angle is a float32 product; its cosine and sine are taken in float64 and rounded, so that a row depends on
    its position only.
    """
    check_dtype("frequencies", frequencies, torch.float32)
    check_shape("frequencies", frequencies, None)
    check_dtype("positions", positions, torch.int32, torch.int64)
    check_shape("positions", positions, None)
    check_strided("frequencies", frequencies)
    check_place("positions", positions, frequencies.device.type)
    angle = positions.to(torch.float32)[:, None] * frequencies[None, :]
    angle = angle.to(torch.float64)
    # Rounded one by one: at a million positions a float64 table of both would take half a gigabyte more.
    return torch.cat([torch.cos(angle).to(torch.float32), torch.sin(angle).to(torch.float32)], dim=1)


def apply_rope(x: Tensor, positions: Tensor, table: Tensor, *, inverse: bool = False) -> Tensor:
    """Rotate the last ``dim`` elements of each vector; the others are copied.

    Args:
        x: ``[rows, heads, width]`` bfloat16 or float32.
        positions: int32 ``[rows]``, each within the table.
        table: float32 ``[positions, dim]`` of :func:`rope_table`.
        inverse: rotate backwards (for the attention output).

    Returns:
        A new tensor like ``x``: ``y0 = x0*c - x1*s``, ``y1 = x0*s + x1*c`` (inverse: ``s`` negated), float32 products
        and sum, rounded once.

    Raises:
        IndexError: a position outside the table; nothing is computed then.
    """
    check_dtype("x", x, *ACTIVATIONS)
    check_dtype("positions", positions, torch.int32)
    check_dtype("table", table, torch.float32)
    check_shape("x", x, None, None, None)
    check_shape("positions", positions, x.shape[0])
    check_shape("table", table, None, None)
    if x.shape[2] < table.shape[1]:
        raise ValueError(
            f"x has width {x.shape[2]}; it must be at least the {table.shape[1]} rotary dimensions"
        )
    check_kind("inverse", inverse, bool)
    return cast(Tensor, kernel("rope", "apply_rope", x)(x, positions, table, inverse))
