"""Reference of the topk family: a stable sort, then ascending order of what was kept."""

from __future__ import annotations

import torch
from torch import Tensor


def topk_indices(scores: Tensor, k: int, lengths: Tensor) -> Tensor:
    """See :func:`di_kernels.ops.topk.topk_indices`."""
    rows, n = scores.shape
    index = torch.arange(n, device=scores.device)
    taking_part = index < lengths[:, None]
    ranked = torch.where(taking_part & ~scores.isnan(), scores.float(), -torch.inf)
    # Stable: of equal scores the lower index stands first, so those behind the length come last.
    order = ranked.argsort(dim=1, descending=True, stable=True)[:, :k]
    chosen = index[: order.shape[1]] < lengths[:, None]
    selected = torch.where(chosen, order, n).sort(dim=1).values
    result = torch.full((rows, k), -1, dtype=torch.int32, device=scores.device)
    result[:, : order.shape[1]] = torch.where(selected < n, selected, -1).to(torch.int32)
    return result
