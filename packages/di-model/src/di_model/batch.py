"""One step's rows as tensors, shared by every layer. No layer builds metadata of its own.

Prefill, chunk, decode and verify are the same thing with different numbers of rows per sequence. Everything a layer
needs to know about where a row reads and writes follows from five arrays (cache spec, 6), computed here once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from di_cache import (
    CacheLayout,
    EntryStorePlan,
    RingStorePlan,
    StepRows,
    compress_partner_plan,
    compressed_store_plan,
    ring_store_plan,
    visible_entries,
)
from di_kernels.ops.compress import PairRows
from torch import Tensor


@dataclass(frozen=True, eq=False)
class WindowRows:
    """Window keys of each row, int32 ``[rows]``, and the columns they take: see
    :class:`di_kernels.ops.attention.WindowKeys`."""

    slot: Tensor
    split: Tensor
    fresh_start: Tensor
    begin: Tensor
    end: Tensor
    width: int


@dataclass(frozen=True, eq=False)
class EntryRows:
    """What the layers of one compress ratio share.

    Attributes:
        visible: int32 ``[rows]`` entries that each row may see.
        store: rows that complete an entry and where it goes.
        rope_positions: int32 position of the first token of each completed entry.
        pairs: where the two tokens of each completed entry are (ratio 2 only).
        ring: rows that go to the compression ring (ratio 2 only).
    """

    visible: Tensor
    store: EntryStorePlan
    rope_positions: Tensor
    pairs: PairRows | None
    ring: RingStorePlan | None


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of many sequences.

    Attributes:
        tokens: int32 ``[rows]`` token ids.
        positions: int32 ``[rows]``.
        sequence: int32 ``[rows]`` sequence of each row.
        block_table: int32 ``[sequences, width]``.
        last_tokens: int32 ``[rows, n]``; column ``k`` is the token ``k`` positions back, -1 before the start.
        window: window keys of each row.
        window_store: rows that go to the window rings.
        entries: by compress ratio.
    """

    tokens: Tensor
    positions: Tensor
    sequence: Tensor
    block_table: Tensor
    last_tokens: Tensor
    window: WindowRows
    window_store: RingStorePlan
    entries: Mapping[int, EntryRows]

    @property
    def num_rows(self) -> int:
        """Rows of the step."""
        return self.tokens.shape[0]


def build_batch(
    layout: CacheLayout,
    *,
    tokens: Tensor,
    q_start: Tensor,
    q_len: Tensor,
    slots: Tensor,
    block_table: Tensor,
    context: Tensor,
    window_columns: int | None = None,
) -> Batch:
    """Expand a step's per-sequence arrays into rows.

    Args:
        layout: layout of the cache that the step reads and writes.
        tokens: int32 ``[rows]`` token ids, sequence by sequence.
        q_start: int32 ``[sequences]`` position of each sequence's first row.
        q_len: int32 ``[sequences]`` rows of each sequence.
        slots: int32 ``[sequences]`` state slots.
        block_table: int32 ``[sequences, width]``.
        context: int32 ``[sequences, lookback]``; column ``k`` is the token at ``q_start - 1 - k``, or -1.
        window_columns: columns that window keys take in attention; None: the window's size, whatever the schedule. The
            release takes fewer for a prompt shorter than the window; its values are checked that way.

    Raises:
        SlotMapError: the arrays do not describe a step of this layout.
    """
    rows = StepRows.from_sequences(q_start, q_len, slots, block_table, layout.spec.block_size)
    if tokens.shape != rows.positions.shape:
        raise ValueError(
            f"tokens has shape {list(tokens.shape)}; expected [{rows.positions.shape[0]}], one a row"
        )
    ratios = sorted({layer.ratio for layer in layout.spec.layers if layer.ratio})
    window = layout.spec.window
    return Batch(
        tokens=tokens.to(torch.int32),
        positions=rows.positions.to(torch.int32),
        sequence=rows.sequence.to(torch.int32),
        block_table=block_table.to(torch.int32).contiguous(),
        last_tokens=_last_tokens(rows, tokens, context),
        window=_window_rows(rows, window, window if window_columns is None else window_columns),
        window_store=ring_store_plan(rows, layout.window_cells),
        entries={ratio: _entry_rows(rows, ratio, layout.compress_cells) for ratio in ratios},
    )


def _last_tokens(rows: StepRows, tokens: Tensor, context: Tensor) -> Tensor:
    """Tokens 0..lookback positions back of every row, from the step itself or from its context."""
    lookback = context.shape[1]
    in_chunk = rows.positions - rows.q_start[rows.sequence]  # rows of the same sequence before this one
    columns = [tokens.long()]
    for back in range(1, lookback + 1):
        row = torch.arange(rows.positions.shape[0]) - back
        column = back - 1 - in_chunk
        from_context = context.long()[rows.sequence, column.clamp(min=0)]
        columns.append(torch.where(column >= 0, from_context, tokens.long()[row.clamp(min=0)]))
    return torch.stack(columns, dim=1).to(torch.int32)


def _window_rows(rows: StepRows, window: int, width: int) -> WindowRows:
    split = rows.q_start[rows.sequence]
    as_int32 = [
        rows.slots[rows.sequence],
        split,
        rows.row_start[:-1][rows.sequence],
        (rows.positions - (window - 1)).clamp(min=0),
        rows.positions + 1,
    ]
    slot, split, fresh_start, begin, end = (tensor.to(torch.int32) for tensor in as_int32)
    return WindowRows(slot, split, fresh_start, begin, end, width)


def _entry_rows(rows: StepRows, ratio: int, cells: int) -> EntryRows:
    store = compressed_store_plan(rows, ratio)
    pairs = ring = None
    if ratio == 2:
        partner = compress_partner_plan(rows, cells)
        indices = (partner.row, partner.partner_row, partner.slot, partner.cell)
        pairs = PairRows(*(tensor.to(torch.int32) for tensor in indices))
        ring = ring_store_plan(rows, cells)
    return EntryRows(
        visible=visible_entries(rows.positions, ratio).to(torch.int32),
        store=store,
        rope_positions=store.rope_position.to(torch.int32),
        pairs=pairs,
        ring=ring,
    )
