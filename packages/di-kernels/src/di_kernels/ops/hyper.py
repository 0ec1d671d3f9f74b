"""Manifold-constrained hyper-connections (backbone specification, 3): four residual streams mixed by small matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from di_kernels.dispatch import kernel
from di_kernels.ops.checks import (
    ACTIVATIONS,
    check_dtype,
    check_kind,
    check_multiple,
    check_number,
    check_positive,
    check_shape,
    check_tensors,
)

MOST_ITERATIONS = 10_000


@dataclass(frozen=True)
class HyperConstants:
    """Constants of the mixes: ``eps`` of the RMS statistic, ``hc_eps`` and iterations of Sinkhorn.

    Raises:
        TypeError, ValueError: ``eps`` or ``hc_eps`` is no number from 0 to 1, or ``sinkhorn_iters`` none from 1 to
            :data:`MOST_ITERATIONS`.
    """

    eps: float
    hc_eps: float
    sinkhorn_iters: int

    def __post_init__(self) -> None:
        check_number("eps", self.eps, 0.0, 1.0)
        check_number("hc_eps", self.hc_eps, 0.0, 1.0)
        check_kind("sinkhorn_iters", self.sinkhorn_iters, int)
        check_number("sinkhorn_iters", self.sinkhorn_iters, 1, MOST_ITERATIONS)


class HyperMixes(NamedTuple):
    """Coefficients of one sub-layer, float32: ``pre [rows, m]``, ``post [rows, m]``, ``comb [rows, m, m]``.

    The first index of ``comb`` is the source stream, the second the destination.
    """

    pre: Tensor
    post: Tensor
    comb: Tensor


@dataclass(frozen=True, eq=False)
class HyperEntryWeights:
    """Parameters of a sub-layer's entry: ``fn``, ``base`` and ``scale`` of :func:`hyper_mixes`, and ``norm [dim]``,
    the weight of its input norm, bfloat16 or float32."""

    fn: Tensor
    base: Tensor
    scale: Tensor
    norm: Tensor


def hyper_mixes(
    stream: Tensor, fn: Tensor, base: Tensor, scale: Tensor, constants: HyperConstants
) -> HyperMixes:
    """Coefficients of a sub-layer from the trunk it finds (3.2, 3.3).

    Args:
        stream: ``[rows, m, dim]`` bfloat16 or float32.
        fn: float32 ``[m(m+2), m*dim]``, columns stream-major.
        base: float32 ``[m(m+2)]``.
        scale: float32 ``[3]`` for pre, post, comb.
        constants: see :class:`HyperConstants`.
    """
    _check_stream(stream)
    _check_mixing(stream, fn, base, scale, constants)
    return cast(HyperMixes, kernel("hyper", "hyper_mixes", stream)(stream, fn, base, scale, constants))


def _check_mixing(stream: Tensor, fn: Tensor, base: Tensor, scale: Tensor, constants: HyperConstants) -> None:
    m, dim = stream.shape[1], stream.shape[2]
    check_shape("fn", fn, m * (m + 2), m * dim)
    check_shape("base", base, m * (m + 2))
    check_shape("scale", scale, 3)
    for name, tensor in (("fn", fn), ("base", base), ("scale", scale)):
        check_dtype(name, tensor, torch.float32)
    check_kind("constants", constants, HyperConstants)


def hyper_coefficients(
    z: Tensor, base: Tensor, scale: Tensor, constants: HyperConstants, m: int
) -> HyperMixes:
    """The part of :func:`hyper_mixes` after the projection: float32 ``z [rows, m(m+2)]`` to coefficients."""
    check_positive("m", m)
    check_dtype("z", z, torch.float32)
    check_shape("z", z, None, m * (m + 2))
    for name, tensor, size in (("base", base, m * (m + 2)), ("scale", scale, 3)):
        check_dtype(name, tensor, torch.float32)
        check_shape(name, tensor, size)
    check_kind("constants", constants, HyperConstants)
    return cast(HyperMixes, kernel("hyper", "hyper_coefficients", z)(z, base, scale, constants, m))


def hyper_pre(stream: Tensor, pre: Tensor) -> Tensor:
    """Sub-layer input ``sum_s pre[s] * stream[s]`` (3.4), streams in order, rounded once: ``[rows, dim]``."""
    _check_stream(stream)
    check_dtype("pre", pre, torch.float32)
    check_shape("pre", pre, stream.shape[0], stream.shape[1])
    return cast(Tensor, kernel("hyper", "hyper_pre", stream)(stream, pre))


def hyper_post(stream: Tensor, y: Tensor, mixes: HyperMixes) -> Tensor:
    """New trunk ``post[j]*y + sum_i comb[i,j]*stream[i]`` (3.5), in that order, rounded once: like ``stream``."""
    _check_stream(stream)
    check_dtype("y", y, stream.dtype)
    check_shape("y", y, stream.shape[0], stream.shape[2])
    check_kind("mixes", mixes, HyperMixes)
    check_tensors("mixes", mixes, "post", "comb")
    return cast(Tensor, kernel("hyper", "hyper_post", stream)(stream, y, mixes))


def hyper_enter(
    stream: Tensor,
    pre: Tensor,
    weights: HyperEntryWeights,
    constants: HyperConstants,
    *,
    quantize: bool = False,
) -> tuple[HyperMixes, Tensor, Tensor | None]:
    """What a sub-layer does with the trunk it finds: its own mixes, and its input by the ``pre`` of the one before.

    Args:
        stream: ``[rows, m, dim]`` bfloat16 or float32.
        pre: float32 ``[rows, m]``, of the previous sub-layer's mixes.
        weights: see :class:`HyperEntryWeights`.
        constants: ``eps`` is that of the input norm too.
        quantize: also return the MXFP8 round trip of the input; ``dim`` is a multiple of 32 then.

    Returns:
        ``(hyper_mixes(stream), x, round_trip(x, FP8) or None)`` with ``x = rms_norm(hyper_pre(stream, pre))``
        ``[rows, dim]``: the bits of these operations one after the other.
    """
    _check_stream(stream)
    check_kind("weights", weights, HyperEntryWeights)
    _check_mixing(stream, weights.fn, weights.base, weights.scale, constants)
    check_dtype("pre", pre, torch.float32)
    check_shape("pre", pre, stream.shape[0], stream.shape[1])
    check_dtype("weights.norm", weights.norm, *ACTIVATIONS)
    check_shape("weights.norm", weights.norm, stream.shape[2])
    check_kind("quantize", quantize, bool)
    if quantize:
        check_multiple("the last dimension of stream", stream.shape[2], 32)
    return cast(
        tuple[HyperMixes, Tensor, Tensor | None],
        kernel("hyper", "hyper_enter", stream)(stream, pre, weights, constants, quantize),
    )


def hyper_post_combined(stream: Tensor, shared: Tensor, routed: Tensor, mixes: HyperMixes) -> Tensor:
    """:func:`hyper_post` with ``y = combine(shared, routed)`` of the moe family, in one pass: like ``stream``.

    Args:
        stream: ``[rows, m, dim]`` bfloat16 or float32.
        shared: ``[rows, dim]`` in its type.
        routed: ``[rows, k, dim]`` in its type.
        mixes: ``post`` and ``comb`` are used.
    """
    _check_stream(stream)
    rows, _, dim = stream.shape
    check_dtype("shared", shared, stream.dtype)
    check_shape("shared", shared, rows, dim)
    check_dtype("routed", routed, stream.dtype)
    check_shape("routed", routed, rows, None, dim)
    check_kind("mixes", mixes, HyperMixes)
    check_tensors("mixes", mixes, "post", "comb")
    return cast(Tensor, kernel("hyper", "hyper_post_combined", stream)(stream, shared, routed, mixes))


def stream_mean(stream: Tensor) -> Tensor:
    """Mean over the streams (backbone 8.1), summed in float32 in stream order, rounded once: ``[rows, dim]``."""
    _check_stream(stream)
    return cast(Tensor, kernel("hyper", "stream_mean", stream)(stream))


def _check_stream(stream: Tensor) -> None:
    check_dtype("stream", stream, *ACTIVATIONS)
    check_shape("stream", stream, None, None, None)
