"""Reference of the compress family (attention specification, 7.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels.ops.compress import PairRows


def compress_pairs(fresh: Tensor, ring: Tensor, rows: PairRows, dtype: torch.dtype) -> Tensor:
    """See :func:`di_kernels.ops.compress.compress_pairs`."""
    earlier = ring[rows.slot.long(), rows.cell.long()]
    this_step = fresh[rows.first.long().clamp(min=0)]
    score0, latent0 = torch.where((rows.first >= 0)[:, None, None], this_step, earlier).unbind(dim=1)
    score1, latent1 = fresh[rows.last.long()].unbind(dim=1)
    maximum = torch.maximum(score0, score1)
    e0, e1 = torch.exp(score0 - maximum), torch.exp(score1 - maximum)
    total = e0 + e1
    return (latent0 * (e0 / total) + latent1 * (e1 / total)).to(dtype)
