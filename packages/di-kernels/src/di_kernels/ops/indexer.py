"""Lightning indexer: scores of compressed entries and candidate blocks (attention specification, 8 and 9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from di_kernels.dispatch import kernel
from di_kernels.ops.checks import (
    ACTIVATIONS,
    check_dtype,
    check_kind,
    check_positive,
    check_shape,
    check_tensors,
)

_MOST_IN_BLOCK = 2**63 - 1
"""Entries of a block where blocks are only scored: one may reach beyond whatever is visible."""


@dataclass(frozen=True)
class IndexPages:
    """Paged index keys of one layer and how rows find theirs.

    Attributes:
        values: MXFP4 codes uint8 ``[blocks, entries, dim/2]``, or float32 ``[blocks, entries, dim]`` (strided views).
        scales: uint8 UE8M0 ``[blocks, entries, dim/32]``, or None with float32 values.
        block_table: int32 ``[sequences, width]`` block of each ``entries`` consecutive entries.
        sequence: int32 ``[rows]`` sequence of each row.
    """

    values: Tensor
    scales: Tensor | None
    block_table: Tensor
    sequence: Tensor


def index_scores(
    q: Tensor, head_weights: Tensor, pages: IndexPages, visible: Tensor, entries: Tensor | None
) -> Tensor:
    """``sum_h relu(q_h . k_j) * w_h`` for the entries each row may see.

    bfloat16 ``q`` (the release's arithmetic, 8.4): each dot is rounded to bfloat16, rectified, multiplied by the
    bfloat16 weight and rounded, the heads summed in float32 in order, the sum rounded. float32 ``q``: no rounding.

    A dot of bfloat16 is one float32 sum over pairs of elements ``(8 o + s, 8 o + s + 4)``, ``s = 0..3``, octet after
    octet: the second of a pair is added first, each by a fused multiply-add that flushes subnormals. On amx the first
    ones of the pairs of 32 elements are added up apart from the second ones, then both, 32 after 32. A dot of float32
    takes one fused multiply-add an element, in order.

    Args:
        q: ``[rows, heads, dim]`` de-quantized MXFP4 values (bfloat16) or plain values (float32).
        head_weights: ``[rows, heads]`` in the type of ``q``, already scaled by ``(dim*heads)^-0.5``.
        pages: index keys.
        visible: int32 ``[rows]``, entries ``0..visible-1`` exist for a row.
        entries: int32 ``[rows, width]`` entries to score (-1: none), or None for all visible ones.

    Returns:
        float32 ``[rows, width]`` (``width = max(visible)`` without ``entries``), ``-inf`` where there is no entry.

    Raises:
        IndexError: more visible entries than a row of the table has, or a sequence or block outside its array.
    """
    _check_scored(q, head_weights, pages, visible)
    if entries is not None:
        check_dtype("entries", entries, torch.int32)
        check_shape("entries", entries, q.shape[0], None)
    return cast(Tensor, kernel("indexer", "index_scores", q)(q, head_weights, pages, visible, entries))


def select_entries(
    q: Tensor,
    head_weights: Tensor,
    pages: IndexPages,
    visible: Tensor,
    topk: int,
    *,
    candidates: Tensor | None = None,
    top_blocks: int | None = None,
    block_size: int = 1,
) -> tuple[Tensor, Tensor | None]:
    """Score entries and keep the best: what the functions of this family and ``topk_indices`` do one after the other.

    Scores are never held for more than a tile of entries. Rows with at most ``topk`` entries take them all.

    Args:
        q, head_weights, pages, visible: as of :func:`index_scores`.
        topk: entries to keep for each row.
        candidates: int32 ``[rows, n]`` blocks to choose from, ascending, then -1; None: all visible entries.
        top_blocks: how many candidate blocks to choose as well, or None; only without ``candidates``.
        block_size: entries of a block.

    Returns:
        int32 ``[rows, topk]`` entry numbers ascending, then -1, and int32 ``[rows, top_blocks]`` as of
        :func:`candidate_blocks`, or None.

    Raises:
        IndexError: as of :func:`index_scores`.
        ValueError: both ``candidates`` and ``top_blocks``.
    """
    _check_scored(q, head_weights, pages, visible)
    check_positive("topk", topk)
    check_positive("block_size", block_size, _MOST_IN_BLOCK)
    if candidates is not None:
        check_dtype("candidates", candidates, torch.int32)
        check_shape("candidates", candidates, q.shape[0], None)
    if top_blocks is not None:
        check_positive("top_blocks", top_blocks)
        if candidates is not None:
            raise ValueError(
                f"top_blocks is {top_blocks}; it must be None with candidates, which are blocks that were chosen before"
            )
    return cast(
        tuple[Tensor, Tensor | None],
        kernel("indexer", "select_entries", q)(
            q, head_weights, pages, visible, topk, candidates, top_blocks, block_size
        ),
    )


def _check_scored(q: Tensor, head_weights: Tensor, pages: IndexPages, visible: Tensor) -> None:
    """Arguments of whatever scores entries."""
    check_dtype("q", q, *ACTIVATIONS)
    check_kind("pages", pages, IndexPages)
    check_tensors("pages", pages, "values", "block_table", "sequence")
    if pages.scales is not None:
        check_tensors("pages", pages, "scales")
    check_dtype("head_weights", head_weights, q.dtype)
    check_shape("q", q, None, None, None)
    check_shape("head_weights", head_weights, q.shape[0], q.shape[1])
    check_dtype("visible", visible, torch.int32)
    check_shape("visible", visible, q.shape[0])


def candidate_blocks(scores: Tensor, visible: Tensor, block_size: int, top_blocks: int) -> Tensor:
    """The best blocks of entries of each row (9.1): block score = maximum; the last visible block always wins.

    Args:
        scores: float32 ``[rows, n]`` of all visible entries.
        visible: int32 ``[rows]``.
        block_size: entries per block.
        top_blocks: blocks to keep; ties at the boundary go to the lowest block.

    Returns:
        int32 ``[rows, top_blocks]`` block numbers ascending, then -1.

    Raises:
        IndexError: a row has more visible entries than scores.
    """
    check_dtype("scores", scores, torch.float32)
    check_shape("scores", scores, None, None)
    check_positive("block_size", block_size, _MOST_IN_BLOCK)
    check_positive("top_blocks", top_blocks)
    check_dtype("visible", visible, torch.int32)
    check_shape("visible", visible, scores.shape[0])
    return cast(
        Tensor, kernel("indexer", "candidate_blocks", scores)(scores, visible, block_size, top_blocks)
    )


def candidate_entries(blocks: Tensor, visible: Tensor, block_size: int) -> Tensor:
    """Entries of the candidate blocks (9.2): int32 ``[rows, top_blocks*block_size]`` ascending, then -1.

    Args:
        blocks: int32 ``[rows, top_blocks]`` ascending, then -1.
        visible: int32 ``[rows]``; entries beyond it are left out.
        block_size: entries per block.
    """
    check_dtype("blocks", blocks, torch.int32)
    check_shape("blocks", blocks, None, None)
    check_positive("block_size", block_size)
    check_dtype("visible", visible, torch.int32)
    check_shape("visible", visible, blocks.shape[0])
    return cast(Tensor, kernel("indexer", "candidate_entries", blocks)(blocks, visible, block_size))
