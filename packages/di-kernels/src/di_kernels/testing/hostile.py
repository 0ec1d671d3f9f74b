"""Values that break kernels: zeros of both signs, extremes, subnormals, outliers, ties, NaN, infinities."""

from __future__ import annotations

import enum
import math

import torch
from torch import Tensor

AWKWARD_SIZES = (0, 1, 2, 3, 7, 31, 33, 63, 64, 65, 127)
"""Lengths around the widths that vector code works in, and the two smallest."""


class Hostile(enum.Enum):
    """A kind of values; the finite kinds stay finite through a dot product of a few thousand terms."""

    NORMAL = "normal"
    """Standard normal values."""
    ZEROS = "zeros"
    """Positive zero everywhere."""
    NEGATIVE_ZEROS = "negative_zeros"
    """Negative zero everywhere."""
    TINY = "tiny"
    """Normal values below every floor of the quantizers, around 1e-30."""
    HUGE = "huge"
    """Values around 1e15, whose products are still finite in float32."""
    EXTREMES = "extremes"
    """The largest finite values of bfloat16 (hence of float32, nearly), with random signs."""
    SUBNORMALS = "subnormals"
    """Subnormals of float32 that bfloat16 holds too."""
    OUTLIERS = "outliers"
    """Normal values, one in sixteen a hundred times larger."""
    TIES = "ties"
    """Multiples of 1/16 in [-8, 8]: halfway points of four-bit and eight-bit codes, and many equal values."""
    NAN = "nan"
    """Normal values with a NaN in every other row."""
    INFINITIES = "infinities"
    """Normal values with infinities of both signs in every other row."""

    @property
    def finite(self) -> bool:
        """Whether every value of this kind is finite."""
        return self not in (Hostile.NAN, Hostile.INFINITIES)


def hostile(kind: Hostile, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """A tensor of ``shape`` and ``dtype`` with values of one kind, the same ones for the same arguments.

    Args:
        kind: which values.
        shape: sizes; rows are the slices along the last dimension.
        dtype: bfloat16 or float32.
        seed: another seed gives other values of the same kind.
    """
    generator = torch.Generator("cpu").manual_seed(1000 * seed + len(kind.value))
    normal = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
    signs = torch.where(normal < 0, -1.0, 1.0)
    values = normal
    if kind is Hostile.ZEROS:
        values = torch.zeros_like(normal)
    elif kind is Hostile.NEGATIVE_ZEROS:
        values = -torch.zeros_like(normal)
    elif kind is Hostile.TINY:
        values = normal * 1e-30
    elif kind is Hostile.HUGE:
        values = normal * 1e15
    elif kind is Hostile.EXTREMES:
        values = signs * float(torch.finfo(torch.bfloat16).max)
    elif kind is Hostile.SUBNORMALS:
        values = signs * torch.randint(1, 128, shape, generator=generator, device="cpu") * 2.0**-133
    elif kind is Hostile.OUTLIERS:
        rare = torch.randint(0, 16, shape, generator=generator, device="cpu") == 0
        values = torch.where(rare, normal * 100, normal)
    elif kind is Hostile.TIES:
        values = torch.randint(-128, 129, shape, generator=generator, device="cpu") / 16
    elif not kind.finite:
        values = _with_specials(normal, kind, generator)
    return values.to(dtype)


def _with_specials(values: Tensor, kind: Hostile, generator: torch.Generator) -> Tensor:
    """``values`` with one special value (infinities: two) at random places of the rows 0, 2, 4, ..."""
    if values.numel() == 0:
        return values
    rows = values.reshape(-1, values.shape[-1])
    specials = [math.nan] if kind is Hostile.NAN else [math.inf, -math.inf]
    for special in specials:
        column = torch.randint(0, rows.shape[1], (rows.shape[0],), generator=generator, device="cpu")
        rows[torch.arange(0, rows.shape[0], 2, device="cpu"), column[::2]] = special
    return rows.reshape(values.shape)
