"""CPU kernels of the hyper family."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels import _native
from di_kernels.cpu.arrays import empty
from di_kernels.ops.hyper import HyperConstants, HyperEntryWeights, HyperMixes


def hyper_mixes(
    stream: Tensor, fn: Tensor, base: Tensor, scale: Tensor, constants: HyperConstants
) -> HyperMixes:
    """See :func:`di_kernels.ops.hyper.hyper_mixes`."""
    z = empty(stream.shape[0], fn.shape[0], dtype=torch.float32)
    _native.hyper_project(stream.contiguous(), fn, constants.eps, z)
    return hyper_coefficients(z, base, scale, constants, stream.shape[1])


def hyper_coefficients(
    z: Tensor, base: Tensor, scale: Tensor, constants: HyperConstants, m: int
) -> HyperMixes:
    """See :func:`di_kernels.ops.hyper.hyper_coefficients`."""
    rows = z.shape[0]
    mixes = _mixes(rows, m)
    _native.hyper_coefficients(
        z.contiguous(),
        base,
        scale,
        constants.hc_eps,
        constants.sinkhorn_iters,
        mixes.pre,
        mixes.post,
        mixes.comb,
    )
    return mixes


def hyper_pre(stream: Tensor, pre: Tensor) -> Tensor:
    """See :func:`di_kernels.ops.hyper.hyper_pre`."""
    y = empty(stream.shape[0], stream.shape[2], dtype=stream.dtype)
    _native.hyper_pre(stream.contiguous(), pre.contiguous(), y)
    return y


def hyper_post(stream: Tensor, y: Tensor, mixes: HyperMixes) -> Tensor:
    """See :func:`di_kernels.ops.hyper.hyper_post`."""
    out = empty(*stream.shape, dtype=stream.dtype)
    _native.hyper_post(
        stream.contiguous(), y.contiguous(), mixes.post.contiguous(), mixes.comb.contiguous(), out
    )
    return out


def hyper_enter(
    stream: Tensor, pre: Tensor, weights: HyperEntryWeights, constants: HyperConstants, quantize: bool
) -> tuple[HyperMixes, Tensor, Tensor | None]:
    """See :func:`di_kernels.ops.hyper.hyper_enter`."""
    rows, m, dim = stream.shape
    mixes = _mixes(rows, m)
    x = empty(rows, dim, dtype=stream.dtype)
    quantized = empty(rows, dim, dtype=stream.dtype) if quantize else None
    _native.hyper_enter(
        stream.contiguous(),
        pre.contiguous(),
        weights.fn,
        weights.base,
        weights.scale,
        constants.eps,
        constants.hc_eps,
        constants.sinkhorn_iters,
        weights.norm.to(torch.float32),
        constants.eps,
        mixes,
        x,
        quantized,
    )
    return mixes, x, quantized


def hyper_post_combined(stream: Tensor, shared: Tensor, routed: Tensor, mixes: HyperMixes) -> Tensor:
    """See :func:`di_kernels.ops.hyper.hyper_post_combined`."""
    out = empty(*stream.shape, dtype=stream.dtype)
    _native.hyper_post_combined(
        stream.contiguous(),
        shared.contiguous(),
        routed.contiguous(),
        mixes.post.contiguous(),
        mixes.comb.contiguous(),
        out,
    )
    return out


def stream_mean(stream: Tensor) -> Tensor:
    """See :func:`di_kernels.ops.hyper.stream_mean`."""
    y = empty(stream.shape[0], stream.shape[2], dtype=stream.dtype)
    _native.stream_mean(stream.contiguous(), y)
    return y


def _mixes(rows: int, m: int) -> HyperMixes:
    """Room for the coefficients of ``rows`` rows."""
    return HyperMixes(*(empty(*shape, dtype=torch.float32) for shape in ((rows, m), (rows, m), (rows, m, m))))
