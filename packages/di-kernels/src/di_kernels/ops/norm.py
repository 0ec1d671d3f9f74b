"""Root-mean-square normalisation (backbone specification, 2.2)."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from di_kernels.dispatch import kernel
from di_kernels.ops.checks import ACTIVATIONS, check_dtype, check_epsilon, check_multiple, check_shape


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``(x * rstd) * weight`` with ``rstd = 1/sqrt(mean(x^2) + eps)``, rounded once to the type of ``x``.

    Args:
        x: ``[rows, dim]`` bfloat16 or float32.
        weight: ``[dim]`` bfloat16 or float32.
        eps: added to the mean square, not negative; the released model uses 1e-20.

    Returns:
        ``[rows, dim]`` in the type of ``x``.
    """
    _check(x, weight, eps)
    return cast(Tensor, kernel("norm", "rms_norm", x)(x, weight, eps))


def rms_norm_quantized(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """:func:`rms_norm`, and its MXFP8 round trip for projections with quantized inputs (backbone 2.3).

    Returns:
        ``(y, round_trip(y, FP8))``, both like ``x``; ``dim`` is a multiple of 32.
    """
    _check(x, weight, eps)
    check_multiple("the last dimension of x", x.shape[1], 32)
    return cast(tuple[Tensor, Tensor], kernel("norm", "rms_norm_quantized", x)(x, weight, eps))


def _check(x: Tensor, weight: Tensor, eps: float) -> None:
    check_dtype("x", x, *ACTIVATIONS)
    check_dtype("weight", weight, *ACTIVATIONS)
    check_shape("weight", weight, None)
    check_epsilon("eps", eps)
    check_shape("x", x, None, weight.shape[0])
