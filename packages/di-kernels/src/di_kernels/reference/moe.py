"""Reference of the moe family (backbone specification, 4)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from di_kernels.ops.moe import ExpertWeights
from di_kernels.reference.linear import linear


def route(logits: Tensor, bias: Tensor, top_k: int, scale: float) -> tuple[Tensor, Tensor]:
    """See :func:`di_kernels.ops.moe.route`."""
    scores = functional.softplus(logits).sqrt()
    ids = (scores + bias).argsort(dim=1, descending=True, stable=True)[:, :top_k]
    chosen = scores.gather(1, ids)
    weights = chosen / (chosen.sum(dim=1, keepdim=True) + 1e-20) * scale
    return ids.to(torch.int32), weights


def experts(
    x: Tensor, ids: Tensor, weights: Tensor | None, bank: ExpertWeights, limit: float, quantize_input: bool
) -> Tensor:
    """See :func:`di_kernels.ops.moe.experts`."""
    output = torch.zeros(*ids.shape, x.shape[1], dtype=x.dtype, device=x.device)
    for expert in range(len(bank)):
        row, slot = (ids == expert).nonzero(as_tuple=True)
        if row.numel():
            weight = None if weights is None else weights[row, slot]
            value = _expert(x[row], weight, bank, expert, limit, quantize_input)
            output = output.index_put((row, slot), value)
    return output


def _expert(
    x: Tensor, weight: Tensor | None, bank: ExpertWeights, expert: int, limit: float, quantize_input: bool
) -> Tensor:
    """One SwiGLU MLP on rows ``x [n, dim]`` with a routing weight ``[n]`` each (4.4, 4.5)."""
    gate = linear(x, bank.w1[expert], quantize_input, x.dtype).to(torch.float32).clamp(max=limit)
    up = linear(x, bank.w3[expert], quantize_input, x.dtype).to(torch.float32).clamp(-limit, limit)
    activation = functional.silu(gate) * up
    if weight is not None:
        activation = activation * weight[:, None]
    return linear(activation.to(x.dtype), bank.w2[expert], quantize_input, x.dtype)


def combine(shared: Tensor, routed: Tensor) -> Tensor:
    """See :func:`di_kernels.ops.moe.combine`."""
    total = shared.to(torch.float32)
    for slot in range(routed.shape[1]):
        total = total + routed[:, slot].to(torch.float32)
    return total.to(shared.dtype)
