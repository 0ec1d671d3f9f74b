"""The element-wise pieces of the model: plain functions, and the same functions compiled.

Matrix products are fast by themselves; what lies between them is bound by memory, and several times as fast in one
compiled loop. Training compiles, tests and small runs need not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from di_kernels.reference.engram import GATE_FLOOR
from torch import Tensor
from torch.nn import functional

Function = TypeVar("Function", bound=Callable[..., Any])
COMPILED_SHAPES = 64
"""Shapes that a piece is compiled for; rows of every stage and width of the model have their own."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm of rows: float32 like ``x`` (backbone specification, 2.2)."""
    value = x.float()
    return value * torch.rsqrt(value.square().mean(dim=-1, keepdim=True) + eps) * weight


def hyper_input(stream: Tensor, pre: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalised input ``[rows, D]`` of a sub-layer from ``stream [rows, m, D]`` and ``pre [rows, m]`` (3.4)."""
    return rms_norm((pre[..., None] * stream).sum(dim=1), weight, eps)


def hyper_operand(stream: Tensor, dtype: torch.dtype, eps: float) -> tuple[Tensor, Tensor]:
    """Flattened trunk ``[rows, m*D]`` in ``dtype`` and its inverse root mean square ``[rows, 1]`` (3.2)."""
    u = stream.flatten(1)
    return u.to(dtype), torch.rsqrt(u.square().mean(dim=1, keepdim=True) + eps)


def hyper_post(stream: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Trunk ``[rows, m, D]`` after a sub-layer's output ``y [rows, D]`` (3.5)."""
    total = post[..., None] * y.float()[:, None]
    for source in range(stream.shape[1]):
        total = total + comb[:, source, :, None] * stream[:, source, None]
    return total


def rotate(x: Tensor, table: Tensor, inverse: bool) -> Tensor:
    """Rotary embedding of the last channels of ``x [B, T, heads, dim]`` by rows of ``table [T, rope dim]``.

    Float32. Source: attention specification, 3.5.
    """
    dim = table.shape[1]
    cos, sin = table[:, None, : dim // 2], table[:, None, dim // 2 :]
    if inverse:
        sin = -sin
    x0, x1 = x[..., -dim::2], x[..., -dim + 1 :: 2]
    rotated = torch.stack([x0 * cos - x1 * sin, x0 * sin + x1 * cos], dim=-1).flatten(-2)
    return torch.cat([x[..., :-dim].to(rotated.dtype), rotated], dim=-1)


def engram_inject(stream: Tensor, kv: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Trunk after the n-gram memory's ``kv [rows, m+1, D]``; ``weight [m, D]`` is that of query times key (5)."""
    key, value = kv[:, :-1].float(), kv[:, -1:].float()
    query_rstd = torch.rsqrt(stream.square().mean(dim=2) + eps)
    key_rstd = torch.rsqrt(key.square().mean(dim=2) + eps)
    similarity = (stream * weight * key).sum(dim=2) * query_rstd * key_rstd * stream.shape[2] ** -0.5
    root = similarity.abs().clamp(min=GATE_FLOOR).sqrt()
    gate = torch.sigmoid(torch.where(similarity < 0, -root, root))
    return stream + gate[..., None] * value


def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """Clamped SwiGLU (4.5)."""
    return functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


@dataclass(frozen=True)
class Pieces:
    """The functions that a model is built of."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor] = rms_norm
    hyper_input: Callable[[Tensor, Tensor, Tensor, float], Tensor] = hyper_input
    hyper_operand: Callable[[Tensor, torch.dtype, float], tuple[Tensor, Tensor]] = hyper_operand
    hyper_post: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = hyper_post
    rotate: Callable[[Tensor, Tensor, bool], Tensor] = rotate
    engram_inject: Callable[[Tensor, Tensor, Tensor, float], Tensor] = engram_inject
    swiglu: Callable[[Tensor, Tensor, float], Tensor] = swiglu


def compiled_pieces() -> Pieces:
    """All pieces compiled; each compiles when a shape first meets it. Needs a C++ compiler."""
    torch._dynamo.config.recompile_limit = COMPILED_SHAPES
    return Pieces(
        rms_norm=_compiled(rms_norm),
        hyper_input=_compiled(hyper_input),
        hyper_operand=_compiled(hyper_operand),
        hyper_post=_compiled(hyper_post),
        rotate=_compiled(rotate),
        engram_inject=_compiled(engram_inject),
        swiglu=_compiled(swiglu, dynamic=True),  # rows of an expert differ from step to step
    )


def _compiled(function: Function, *, dynamic: bool = False) -> Function:
    return cast(Function, torch.compile(function, dynamic=dynamic))
