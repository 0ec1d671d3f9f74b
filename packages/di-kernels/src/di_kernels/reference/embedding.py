"""Reference of the embedding family (backbone specification, 2.1)."""

from __future__ import annotations

import torch
from torch import Tensor


def embed(ids: Tensor, table: Tensor, dtype: torch.dtype) -> Tensor:
    """See :func:`di_kernels.ops.embedding.embed`."""
    vocab = table.shape[0]
    rows = table[ids.long().clamp(0, vocab - 1)].to(dtype)
    known = (ids >= 0) & (ids < vocab)
    return torch.where(known[:, None], rows, torch.zeros((), dtype=dtype, device=rows.device))
