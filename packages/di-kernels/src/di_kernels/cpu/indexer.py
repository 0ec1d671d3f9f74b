"""CPU kernels of the indexer family."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels import _native
from di_kernels.cpu.arrays import empty
from di_kernels.ops.indexer import IndexPages


def index_scores(
    q: Tensor, head_weights: Tensor, pages: IndexPages, visible: Tensor, entries: Tensor | None
) -> Tensor:
    """See :func:`di_kernels.ops.indexer.index_scores`."""
    if entries is not None:
        entries = entries.contiguous()
        width = entries.shape[1]
    else:
        # A row that claims more than its table has is refused, not allocated for.
        exist = pages.block_table.shape[1] * pages.values.shape[1]
        width = min(max(0, int(visible.max())), exist) if visible.numel() else 0
    out = empty(q.shape[0], width, dtype=torch.float32)
    _native.index_scores(
        q.contiguous(), head_weights.contiguous(), _keys(pages), visible.contiguous(), entries, out
    )
    return out


def select_entries(
    q: Tensor,
    head_weights: Tensor,
    pages: IndexPages,
    visible: Tensor,
    topk: int,
    candidates: Tensor | None,
    top_blocks: int | None,
    block_size: int,
) -> tuple[Tensor, Tensor | None]:
    """See :func:`di_kernels.ops.indexer.select_entries`."""
    rows = q.shape[0]
    selected = empty(rows, topk, dtype=torch.int32)
    blocks = None if top_blocks is None else empty(rows, top_blocks, dtype=torch.int32)
    _native.select_entries(
        q.contiguous(),
        head_weights.contiguous(),
        _keys(pages),
        visible.contiguous(),
        None if candidates is None else candidates.contiguous(),
        block_size,
        selected,
        blocks,
    )
    return selected, blocks


def _keys(pages: IndexPages) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    return pages.values, pages.scales, pages.block_table.contiguous(), pages.sequence.contiguous()


def candidate_blocks(scores: Tensor, visible: Tensor, block_size: int, top_blocks: int) -> Tensor:
    """See :func:`di_kernels.ops.indexer.candidate_blocks`."""
    out = empty(scores.shape[0], top_blocks, dtype=torch.int32)
    if scores.stride(1) != 1:
        scores = scores.contiguous()
    _native.candidate_blocks(scores, visible.contiguous(), block_size, out)
    return out


def candidate_entries(blocks: Tensor, visible: Tensor, block_size: int) -> Tensor:
    """See :func:`di_kernels.ops.indexer.candidate_entries`."""
    out = empty(blocks.shape[0], blocks.shape[1] * block_size, dtype=torch.int32)
    _native.candidate_entries(blocks.contiguous(), visible.contiguous(), block_size, out)
    return out
