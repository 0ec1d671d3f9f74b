"""Reference of the indexer family (attention specification, 8.4 and 9)."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels.ops.formats import EntryFormat
from di_kernels.ops.indexer import IndexPages
from di_kernels.reference.formats import decode
from di_kernels.reference.linear import accumulator
from di_kernels.reference.topk import topk_indices


def index_scores(
    q: Tensor, head_weights: Tensor, pages: IndexPages, visible: Tensor, entries: Tensor | None
) -> Tensor:
    """See :func:`di_kernels.ops.indexer.index_scores`."""
    if entries is None:
        width = int(visible.max()) if visible.numel() else 0
        entries = torch.arange(width, dtype=torch.int32).expand(q.shape[0], width)
    present = (entries >= 0) & (entries < visible[:, None])
    keys = _keys(pages, torch.where(present, entries, 0).long(), q.dtype)
    wide = accumulator(q)
    dots = torch.einsum("rhd,rnd->rhn", q.to(wide), keys.to(wide)).to(torch.float32).to(q.dtype)
    scores = torch.zeros(entries.shape)
    for head in range(q.shape[1]):
        scores = scores + (torch.relu(dots[:, head]) * head_weights[:, head, None]).to(torch.float32)
    return torch.where(present, scores.to(q.dtype).to(torch.float32), -torch.inf)


def _keys(pages: IndexPages, entries: Tensor, dtype: torch.dtype) -> Tensor:
    """Index keys ``[rows, width, dim]`` of entry numbers ``[rows, width]``."""
    per_block = pages.values.shape[1]
    block = pages.block_table[pages.sequence.long()[:, None], entries // per_block].long()
    values = pages.values[block, entries % per_block]
    if pages.scales is None:
        return values.to(dtype)
    return decode(values, pages.scales[block, entries % per_block], EntryFormat.MXFP4, dtype)


def candidate_blocks(scores: Tensor, visible: Tensor, block_size: int, top_blocks: int) -> Tensor:
    """See :func:`di_kernels.ops.indexer.candidate_blocks`."""
    rows, n = scores.shape
    blocks = -(-n // block_size)
    present = torch.arange(n) < visible[:, None]
    padded = torch.full((rows, blocks * block_size), -torch.inf)
    padded[:, :n] = torch.where(present & ~scores.isnan(), scores, -torch.inf)
    # Finite, so that the block pinned with +inf stands above every other.
    best = padded.view(rows, blocks, block_size).amax(dim=2).clamp(max=torch.finfo(torch.bfloat16).max)
    count = (visible + block_size - 1) // block_size
    last = torch.arange(blocks) == count[:, None] - 1
    return topk_indices(torch.where(last, torch.inf, best), top_blocks, count.to(torch.int32))


def candidate_entries(blocks: Tensor, visible: Tensor, block_size: int) -> Tensor:
    """See :func:`di_kernels.ops.indexer.candidate_entries`."""
    entry = blocks[..., None] * block_size + torch.arange(block_size, dtype=torch.int32)
    present = (blocks[..., None] >= 0) & (entry < visible[:, None, None])
    return torch.where(present, entry, -1).to(torch.int32).flatten(1)
