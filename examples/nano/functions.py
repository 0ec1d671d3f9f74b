"""Differentiable pieces of the batched model that plain torch operations would make slow on a CPU."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _Sinkhorn(torch.autograd.Function):
    """Sinkhorn normalisation with rows last in memory, so that every step is a few wide vector operations."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, eps: float, iterations: int) -> Tensor:
        soft = torch.softmax(logits, dim=1)
        p, steps = soft + eps, []
        for step in range(2 * iterations - 1):
            total = p.sum(dim=step % 2, keepdim=True).add_(eps)
            p = p / total
            steps += [p, total]
        ctx.save_for_backward(soft, *steps)
        return p

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        soft, *steps = ctx.saved_tensors
        g = gradients[0]
        for step in reversed(range(len(steps) // 2)):
            p, total = steps[2 * step], steps[2 * step + 1]
            g = (g - (g * p).sum(dim=step % 2, keepdim=True)) / total
        return soft * (g - (g * soft).sum(dim=1, keepdim=True)), None, None


def sinkhorn(logits: Tensor, eps: float, iterations: int) -> Tensor:
    """Mixing matrices ``[m, m, rows]`` from logits of that shape (backbone specification, 3.3)."""
    return cast(Tensor, _Sinkhorn.apply(logits, eps, iterations))  # type: ignore[no-untyped-call]


class _SinkAttention(torch.autograd.Function):
    """Attention with a sink over keys that are their own values, on torch's fused CPU kernel.

    The fused kernel knows no sink. A sink is one more key without value: it adds its exponential to the denominator.
    So the output is rescaled from the kernel's log-sum to the one with the sink, and the fused backward, which
    needs only output and log-sum, is right when it is given those of the whole.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, keys: Tensor, sink: Tensor, mask: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        wide = keys[:, None].expand(-1, q.shape[1], -1, -1)
        mask = mask.to(q.dtype).expand(q.shape[0], q.shape[1], -1, -1)
        out, log_sum = _flash(q, wide, wide, 0.0, False, attn_mask=mask, scale=scale)
        total = torch.logaddexp(log_sum, sink[:, None])
        out = out * (log_sum - total).exp()[..., None].to(out.dtype)
        ctx.save_for_backward(q, keys, sink, mask, out, total)
        ctx.scale = scale
        ctx.mark_non_differentiable(total)
        return out, total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, keys, sink, mask, out, total = ctx.saved_tensors
        g = gradients[0].contiguous()
        wide = keys[:, None].expand(-1, q.shape[1], -1, -1)
        dq, dk, dv = _flash_backward(
            g, q, wide, wide, out, total, 0.0, False, attn_mask=mask, scale=ctx.scale
        )
        probability = (sink[:, None] - total).exp()
        dsink = -(probability * (g.float() * out.float()).sum(dim=3)).sum(dim=(0, 2))
        return dq, (dk + dv).sum(dim=1), dsink, None, None


def sink_attention(
    q: Tensor, keys: Tensor, sink: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Softmax attention with a sink over ``keys``, which are the values too (attention specification, 10).

    Args:
        q: ``[B, H, rows, hd]``.
        keys: ``[B, n, hd]`` like ``q``, shared by the heads.
        sink: float32 ``[H]``.
        mask: ``[B or 1, 1, rows, n]``, 0 where a row sees a key, -inf where it does not.
        scale: of the logits.

    Returns:
        Output ``[B, H, rows, hd]`` and float32 log-sum-exp ``[B, H, rows]`` with the sink, which has no gradient.
    """
    return cast(
        tuple[Tensor, Tensor],
        _SinkAttention.apply(q, keys, sink, mask, scale),  # type: ignore[no-untyped-call]
    )
