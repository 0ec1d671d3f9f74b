"""Linear layers under the numerics of the model."""

from __future__ import annotations

from di_kernels.ops.linear import LinearWeight, WeightFormat, linear
from torch import Tensor

from di_model.numerics import Numerics

QUANTIZED = (WeightFormat.FP8, WeightFormat.MXFP4)


def quantizes_input(weight: LinearWeight, numerics: Numerics) -> bool:
    """Whether the input of this weight is quantized to MXFP8: release numerics, FP8 or MXFP4 weight (backbone 2.4)."""
    return numerics is Numerics.RELEASE and weight.format in QUANTIZED


def project(x: Tensor, weight: LinearWeight, numerics: Numerics) -> Tensor:
    """``lin_8`` of the specification for quantized weights, ``lin_bf`` for plain ones: ``[rows, n]`` like ``x``."""
    return linear(x, weight, quantize_input=quantizes_input(weight, numerics))
