"""Reference of the hyper family (backbone specification, 3)."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels.ops.formats import EntryFormat
from di_kernels.ops.hyper import HyperConstants, HyperEntryWeights, HyperMixes
from di_kernels.reference.formats import round_trip
from di_kernels.reference.moe import combine
from di_kernels.reference.norm import rms_norm


def hyper_mixes(
    stream: Tensor, fn: Tensor, base: Tensor, scale: Tensor, constants: HyperConstants
) -> HyperMixes:
    """See :func:`di_kernels.ops.hyper.hyper_mixes`."""
    u = stream.flatten(1).to(torch.float32)
    rstd = 1.0 / torch.sqrt(u.square().mean(dim=1, keepdim=True) + constants.eps)
    return hyper_coefficients((u @ fn.T) * rstd, base, scale, constants, stream.shape[1])


def hyper_coefficients(
    z: Tensor, base: Tensor, scale: Tensor, constants: HyperConstants, m: int
) -> HyperMixes:
    """See :func:`di_kernels.ops.hyper.hyper_coefficients`."""
    pre = torch.sigmoid(z[:, :m] * scale[0] + base[:m]) + constants.hc_eps
    post = torch.sigmoid(z[:, m : 2 * m] * scale[1] + base[m : 2 * m]) * 2.0
    mixing = (z[:, 2 * m :] * scale[2] + base[2 * m :]).view(-1, m, m)
    return HyperMixes(pre, post, sinkhorn(mixing, constants.hc_eps, constants.sinkhorn_iters))


def sinkhorn(mixing: Tensor, eps: float, iterations: int) -> Tensor:
    """Alternating row and column normalisation of ``[rows, m, m]`` logits (3.3)."""
    e = torch.exp(mixing - mixing.amax(dim=2, keepdim=True))
    p = e / e.sum(dim=2, keepdim=True) + eps
    p = p / (p.sum(dim=1, keepdim=True) + eps)
    for _ in range(iterations - 1):
        p = p / (p.sum(dim=2, keepdim=True) + eps)
        p = p / (p.sum(dim=1, keepdim=True) + eps)
    return p


def hyper_pre(stream: Tensor, pre: Tensor) -> Tensor:
    """See :func:`di_kernels.ops.hyper.hyper_pre`."""
    value = stream.to(torch.float32)
    total = pre[:, 0, None] * value[:, 0]
    for source in range(1, stream.shape[1]):
        total = total + pre[:, source, None] * value[:, source]
    return total.to(stream.dtype)


def hyper_post(stream: Tensor, y: Tensor, mixes: HyperMixes) -> Tensor:
    """See :func:`di_kernels.ops.hyper.hyper_post`."""
    value = stream.to(torch.float32)
    total = mixes.post[..., None] * y.to(torch.float32)[:, None, :]
    for source in range(stream.shape[1]):
        total = total + mixes.comb[:, source, :, None] * value[:, source, None, :]
    return total.to(stream.dtype)


def hyper_enter(
    stream: Tensor, pre: Tensor, weights: HyperEntryWeights, constants: HyperConstants, quantize: bool
) -> tuple[HyperMixes, Tensor, Tensor | None]:
    """See :func:`di_kernels.ops.hyper.hyper_enter`."""
    mixes = hyper_mixes(stream, weights.fn, weights.base, weights.scale, constants)
    x = rms_norm(hyper_pre(stream, pre), weights.norm, constants.eps)
    return mixes, x, round_trip(x, EntryFormat.FP8) if quantize else None


def hyper_post_combined(stream: Tensor, shared: Tensor, routed: Tensor, mixes: HyperMixes) -> Tensor:
    """See :func:`di_kernels.ops.hyper.hyper_post_combined`."""
    return hyper_post(stream, combine(shared, routed), mixes)


def stream_mean(stream: Tensor) -> Tensor:
    """See :func:`di_kernels.ops.hyper.stream_mean`."""
    value = stream.to(torch.float32)
    total = value[:, 0]
    for source in range(1, stream.shape[1]):
        total = total + value[:, source]
    return (total * (1.0 / stream.shape[1])).to(stream.dtype)
