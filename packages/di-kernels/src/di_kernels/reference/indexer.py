"""Reference of the indexer family (attention specification, 8.4 and 9)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

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
        entries = torch.arange(width, dtype=torch.int32, device=q.device).expand(q.shape[0], width)
    present = (entries >= 0) & (entries < visible[:, None])
    keys = _keys(pages, torch.where(present, entries, 0).long(), q.dtype)
    wide = accumulator(q)
    dots = torch.einsum("rhd,rnd->rhn", q.to(wide), keys.to(wide)).to(torch.float32).to(q.dtype)
    scores = torch.zeros(entries.shape, dtype=torch.float32, device=q.device)
    for head in range(q.shape[1]):
        scores = scores + (torch.relu(dots[:, head]) * head_weights[:, head, None]).to(torch.float32)
    return torch.where(present, scores.to(q.dtype).to(torch.float32), -torch.inf)


def select_entries(
    q: Tensor,
    head_weights: Tensor,
    pages: IndexPages,
    visible: Tensor,
    topk: int,
    candidates: Tensor | None = None,
    top_blocks: int | None = None,
    block_size: int = 1,
) -> tuple[Tensor, Tensor | None]:
    """See :func:`di_kernels.ops.indexer.select_entries`."""
    if candidates is None:
        scores = index_scores(q, head_weights, pages, visible, None)
        blocks = None if top_blocks is None else candidate_blocks(scores, visible, block_size, top_blocks)
        return topk_indices(scores, topk, visible), blocks
    entries = candidate_entries(candidates, visible, block_size)
    present = entries >= 0
    # Without gaps, so that scores stand where the entries do.
    packed = torch.where(present, entries, torch.iinfo(torch.int32).max).sort(dim=1).values
    entries = torch.where(packed == torch.iinfo(torch.int32).max, -1, packed)
    scores = index_scores(q, head_weights, pages, visible, entries)
    chosen = topk_indices(scores, topk, present.sum(dim=1, dtype=torch.int32))
    with_none = functional.pad(entries, (0, 1), value=-1)
    return with_none.gather(1, torch.where(chosen < 0, entries.shape[1], chosen).long()), None


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
    present = torch.arange(n, device=scores.device) < visible[:, None]
    padded = torch.full((rows, blocks * block_size), -torch.inf, dtype=scores.dtype, device=scores.device)
    padded[:, :n] = torch.where(present & ~scores.isnan(), scores, -torch.inf)
    # Finite, so that the block pinned with +inf stands above every other.
    best = padded.view(rows, blocks, block_size).amax(dim=2).clamp(max=torch.finfo(torch.bfloat16).max)
    count = (visible + block_size - 1) // block_size
    last = torch.arange(blocks, device=scores.device) == count[:, None] - 1
    return topk_indices(torch.where(last, torch.inf, best), top_blocks, count.to(torch.int32))


def candidate_entries(blocks: Tensor, visible: Tensor, block_size: int) -> Tensor:
    """See :func:`di_kernels.ops.indexer.candidate_entries`."""
    places = torch.arange(block_size, dtype=torch.int32, device=blocks.device)
    entry = blocks[..., None] * block_size + places
    present = (blocks[..., None] >= 0) & (entry < visible[:, None, None])
    return torch.where(present, entry, -1).to(torch.int32).flatten(1)
