"""Sparse latent attention with a sink over window keys and selected compressed entries (attention specification, 10).

Key and value are one vector shared by all heads. Keys are visited in columns: window keys in position order from
column 0, entries in order from column ``width`` (the window's size), whether the window is full or not. Columns go in
pieces of 64 with a running maximum, absent columns counting towards a piece. Probabilities are rounded to bfloat16 for
the value product when the query is bfloat16, the denominator sums the unrounded ones. That is the release's arithmetic,
and it makes the pieces of a row depend on nothing but the row.

Sums have one order. With a bfloat16 query a logit is one float32 sum over pairs of neighbouring elements, from the
first pair to the last; the output is the sum so far, rescaled, to which pairs of neighbouring keys of the piece are
added. The second of a pair comes first, each by a fused multiply-add that flushes subnormals (what VDPBF16PS does).
On amx the even elements of 32, or the even keys, are added up apart from the odd ones, then both, 32 after 32. With a
float32 query every element, or key, is a fused multiply-add of its own, in order. The denominator is summed key by key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from di_kernels.dispatch import kernel
from di_kernels.ops.checks import ACTIVATIONS, check_dtype, check_kind, check_real, check_shape, check_tensors
from di_kernels.ops.formats import EntryFormat

PIECE = 64
"""Columns per piece of the running softmax."""


@dataclass(frozen=True)
class WindowKeys:
    """Window keys of each row: positions ``begin..end-1``, from two places.

    Positions before ``split`` are in the ring of the row's slot (cell ``position % cells``), written by earlier steps;
    positions from ``split`` on are rows ``fresh_start + (position - split)`` of this step's own records. So a key has
    one value, its quantized record, wherever it is read from, and a chunk may be longer than the ring.

    Attributes:
        ring: records uint8 ``[slots, cells, bytes]`` or float32 ``[slots, cells, dim]`` (strided views).
        fresh: records of this step, uint8 ``[rows, bytes]`` or float32 ``[rows, dim]``.
        entry: format of the records.
        slot, split, fresh_start, begin, end: int32 ``[rows]``; ``begin >= end`` means no window key.
        width: size of the sliding window: the column where entries start. A row with entries has at most ``width``
            window keys.
    """

    ring: Tensor
    fresh: Tensor
    entry: EntryFormat
    slot: Tensor
    split: Tensor
    fresh_start: Tensor
    begin: Tensor
    end: Tensor
    width: int


@dataclass(frozen=True)
class EntryKeys:
    """Selected compressed entries of each row, read in place from pages.

    Attributes:
        pages: records uint8 ``[blocks, entries, bytes]`` or float32 ``[blocks, entries, dim]`` (strided views).
        entry: format of the records.
        block_table: int32 ``[sequences, width]``.
        sequence: int32 ``[rows]`` sequence of each row.
        selected: int32 ``[rows, k]`` entry numbers ascending, negative ones are skipped.
    """

    pages: Tensor
    entry: EntryFormat
    block_table: Tensor
    sequence: Tensor
    selected: Tensor


def sparse_attention(
    q: Tensor, window: WindowKeys, entries: EntryKeys | None, sink: Tensor, scale: float
) -> Tensor:
    """Attention of each row over its window keys and its selected entries.

    Args:
        q: ``[rows, heads, dim]`` bfloat16 or float32.
        window: window keys.
        entries: compressed entries, or None (window-only layers).
        sink: float32 ``[heads]``, a logit without a value, not scaled.
        scale: factor of the logits.

    Returns:
        ``[rows, heads, dim]`` in the type of ``q``; zero for a row without any key.

    Raises:
        IndexError: a slot, position, sequence, entry or block outside its array, or a position that the ring does not
            hold any more (before ``split - cells``); nothing is computed then.
    """
    try:
        out: Tensor = kernel("attention", "sparse_attention", q)(q, window, entries, sink, scale)
    except Exception:
        _check_sparse(q, window, entries, sink, scale)
        raise
    return out


def _check_sparse(
    q: Tensor, window: WindowKeys, entries: EntryKeys | None, sink: Tensor, scale: float
) -> None:
    """Say which argument is refused. The kernels refuse it anyway; before each call this would take a twentieth."""
    check_dtype("q", q, *ACTIVATIONS)
    check_shape("q", q, None, None, None)
    check_dtype("sink", sink, torch.float32)
    check_shape("sink", sink, q.shape[1])
    check_real("scale", scale)
    check_kind("window", window, WindowKeys)
    check_kind("window.entry", window.entry, EntryFormat)
    check_tensors("window", window, "ring", "fresh", "slot", "split", "fresh_start", "begin", "end")
    if entries is not None:
        check_kind("entries", entries, EntryKeys)
        check_kind("entries.entry", entries.entry, EntryFormat)
        check_tensors("entries", entries, "pages", "block_table", "sequence", "selected")


def gathered_attention(q: Tensor, keys: Tensor, index: Tensor, sink: Tensor, scale: float) -> Tensor:
    """The same attention over plain keys chosen by index.

    Args:
        q: ``[rows, heads, dim]`` bfloat16 or float32.
        keys: ``[n, dim]`` in the type of ``q``.
        index: int32 ``[rows, width]`` key of each column, negative: absent; one key may stand more than once.
        sink: float32 ``[heads]``.
        scale: factor of the logits.

    Returns:
        ``[rows, heads, dim]`` in the type of ``q``.

    Raises:
        IndexError: an index beyond the keys; nothing is computed then.
    """
    check_dtype("q", q, *ACTIVATIONS)
    check_shape("q", q, None, None, None)
    check_dtype("keys", keys, q.dtype)
    check_shape("keys", keys, None, q.shape[2])
    check_dtype("index", index, torch.int32)
    check_shape("index", index, q.shape[0], None)
    check_dtype("sink", sink, torch.float32)
    check_shape("sink", sink, q.shape[1])
    check_real("scale", scale)
    return cast(Tensor, kernel("attention", "gathered_attention", q)(q, keys, index, sink, scale))
