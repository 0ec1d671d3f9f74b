"""CPU kernels of the moe family."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from di_kernels import _native
from di_kernels.cpu.arrays import empty
from di_kernels.cpu.linear import matrix
from di_kernels.ops.checks import tensors_of
from di_kernels.ops.moe import ExpertWeights


def route(logits: Tensor, bias: Tensor, top_k: int, scale: float) -> tuple[Tensor, Tensor]:
    """See :func:`di_kernels.ops.moe.route`. A NaN ranks first, so its row gets valid ids and NaN weights."""
    rows, experts = logits.shape
    ids = empty(rows, top_k, dtype=torch.int32)
    weights = empty(rows, top_k, dtype=torch.float32)
    _native.route(logits.contiguous(), bias.contiguous().expand(rows, experts), scale, ids, weights)
    return ids, weights


def experts(
    x: Tensor, ids: Tensor, weights: Tensor | None, bank: ExpertWeights, limit: float, quantize_input: bool
) -> Tensor:
    """See :func:`di_kernels.ops.moe.experts`."""
    y = empty(*ids.shape, x.shape[1], dtype=x.dtype)
    routing = None if weights is None else weights.contiguous()
    _native.experts(bound_bank(bank), x.contiguous(), ids.contiguous(), routing, limit, quantize_input, y)
    return y


def combine(shared: Tensor, routed: Tensor) -> Tensor:
    """See :func:`di_kernels.ops.moe.combine`."""
    y = empty(*shared.shape, dtype=shared.dtype)
    _native.combine(shared.contiguous(), routed.contiguous(), y)
    return y


def bound_bank(bank: ExpertWeights) -> _native.ExpertBank:
    """The native object that holds the addresses of the weights; ``bank`` keeps it and their memory alive."""
    bound = bank.bound.get("cpu")
    if isinstance(bound, _BoundBank):
        return bound.native
    native = _native.ExpertBank()
    for w1, w3, w2 in zip(bank.w1, bank.w3, bank.w2, strict=True):
        native.add(matrix(w1), matrix(w3), matrix(w2))
    bank.bound["cpu"] = _BoundBank(
        native, [tensor.untyped_storage() for _, tensor in tensors_of("bank", bank)]
    )
    return native


@dataclass(frozen=True, eq=False)
class _BoundBank:
    """Addresses, and the memory they are of: a tensor may get another one (``weight.data.data = other``)."""

    native: _native.ExpertBank
    storages: list[torch.UntypedStorage]
