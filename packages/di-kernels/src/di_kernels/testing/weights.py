"""Random weights of every stored format, finite and of moderate size, so that their products tell them apart."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels.ops.linear import LinearWeight, WeightFormat


def random_weight(form: WeightFormat, n: int, k: int, seed: int = 0, *, exponent: int = 0) -> LinearWeight:
    """A matrix ``[n, k]`` with every finite code of its format, the same one for the same arguments.

    Float32 and bfloat16 are standard normal; FP8 and MXFP4 have the same order of size, spread over scales of eight
    powers of two. A single NaN would spread over its whole row: see :func:`with_bad_rows`.

    Args:
        form: how the values are stored; FP8 needs whole blocks of 32 x 32, MXFP4 whole blocks of 32 columns.
        n: rows.
        k: columns.
        seed: another seed gives other values.
        exponent: every value is multiplied by two to this power, from -100 to 100.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    if form in (WeightFormat.FLOAT32, WeightFormat.BFLOAT16):
        values = torch.randn(n, k, generator=generator, dtype=torch.float32, device="cpu") * 2.0**exponent
        return LinearWeight.dense(values if form is WeightFormat.FLOAT32 else values.to(torch.bfloat16))

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator, dtype=torch.uint8, device="cpu")

    if form is WeightFormat.MXFP4:
        scale = integers(122 + exponent, 130 + exponent, n, k // 32)
        return LinearWeight.mxfp4(integers(0, 256, n, k // 2), scale)
    codes = integers(0, 0x7F, n, k) | integers(0, 2, n, k) * 128  # all but the NaN codes 0x7F and 0xFF
    return LinearWeight.fp8(codes, integers(116 + exponent, 124 + exponent, n // 32, k // 32))


def with_bad_rows(weight: LinearWeight) -> LinearWeight:
    """A copy of ``weight`` with a row for each value that is none: a NaN code of either sign, or the scale NaN.

    Row 1 has the first, row 2 the second where the format has them (a NaN of either sign for float32 and bfloat16);
    the scale NaN is that of the first block of the last row (FP8: of the last 32 rows). Other rows are unchanged.
    """
    data = weight.data.clone()
    scale = None if weight.scale is None else weight.scale.clone()
    if weight.format is WeightFormat.FP8:
        data[1, 3], data[2, -1] = 0x7F, 0xFF
    elif weight.format is not WeightFormat.MXFP4:
        data[1, 3], data[2, -1] = float("nan"), -float("nan")
    if scale is not None:
        scale[-1, 0] = 255
    return LinearWeight(weight.format, data, scale)
