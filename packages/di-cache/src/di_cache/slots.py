"""Which row of a step goes to, or comes from, which cell: index arithmetic, no cached data.

A step computes ``q_len`` rows of each of its sequences, starting at position ``q_start``; prefill, chunk,
decode and verify differ in nothing else. From these few numbers everything follows: a token at position p
lives in cell ``p % cells`` of the rings in its sequence's slot, and the entry it completes lies in the block
that column ``p // block_size`` of the block table names (cache spec, 6).

Order within one layer of a step: *read* rings for positions before ``q_start``, *then* store the rows of the
step. A chunk may be longer than a ring, so rows of the step itself are read from the step, not from the ring.

All results are int64 tensors on the device of the inputs. Letters in shapes: S sequences, R rows, W block
table width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


class SlotMapError(ValueError):
    """Step metadata that cannot be mapped. The message names the field, the value and what is allowed."""


@dataclass(frozen=True, slots=True, eq=False)
class StepRows:
    """The rows of one step. Build it with :meth:`from_sequences`; every layer shares it.

    Attributes:
        q_start: [S] position of each sequence's first row.
        q_len: [S] rows of each sequence, consecutive positions.
        slots: [S] state slot of each sequence.
        block_table: [S, W] block ids; columns behind the sequence's last block are never read.
        block_size: tokens per block.
        row_start: [S + 1] first row of each sequence.
        sequence: [R] sequence of each row.
        positions: [R] position of each row.
    """

    q_start: Tensor
    q_len: Tensor
    slots: Tensor
    block_table: Tensor
    block_size: int
    row_start: Tensor
    sequence: Tensor
    positions: Tensor

    @classmethod
    def from_sequences(
        cls, q_start: Tensor, q_len: Tensor, slots: Tensor, block_table: Tensor, block_size: int
    ) -> StepRows:
        """Expand per-sequence integers ([S], [S], [S], [S, W]; int32 or int64) into rows.

        Raises:
            SlotMapError: shapes differ, a value is negative, or a block table is too narrow for its sequence.
        """
        _check_sequences(q_start, q_len, slots, block_table, block_size)
        q_start, q_len, slots = q_start.long(), q_len.long(), slots.long()
        row_start = torch.zeros(len(q_len) + 1, dtype=torch.int64, device=q_len.device)
        torch.cumsum(q_len, 0, out=row_start[1:])
        sequence = torch.repeat_interleave(torch.arange(len(q_len), device=q_len.device), q_len)
        rows = torch.arange(len(sequence), device=q_len.device)
        positions = rows - row_start[sequence] + q_start[sequence]
        return cls(q_start, q_len, slots, block_table.long(), block_size, row_start, sequence, positions)


@dataclass(frozen=True, slots=True, eq=False)
class RingStorePlan:
    """Rows that go to a ring: step row ``row[i]`` to cell ``cell[i]`` of slot ``slot[i]``, each once."""

    row: Tensor
    slot: Tensor
    cell: Tensor
    cells: int

    @property
    def flat(self) -> Tensor:
        """Targets as slot * cells + cell."""
        return self.slot * self.cells + self.cell


@dataclass(frozen=True, slots=True, eq=False)
class EntryStorePlan:
    """Rows that complete an entry: row ``row[i]`` writes entry ``entry[i]`` of block ``block[i]``.

    ``rope_position[i]`` is the position of the first token of the group, which the entry is rotated by.
    """

    row: Tensor
    block: Tensor
    entry: Tensor
    rope_position: Tensor
    entries_per_block: int

    @property
    def flat(self) -> Tensor:
        """Targets as block * entries_per_block + entry."""
        return self.block * self.entries_per_block + self.entry


@dataclass(frozen=True, slots=True, eq=False)
class EntrySlots:
    """Where entries are: block id and entry within it, -1 in both where no entry was asked for."""

    block: Tensor
    entry: Tensor
    entries_per_block: int

    @property
    def flat(self) -> Tensor:
        """block * entries_per_block + entry, or -1."""
        return torch.where(self.block < 0, -1, self.block * self.entries_per_block + self.entry)


@dataclass(frozen=True, slots=True, eq=False)
class PartnerPlan:
    """Where each completing row of a ratio-2 layer finds the first token of its group.

    ``row`` are the completing rows. Where the step computes the token before it as well, ``partner_row`` is
    its row and ``cell`` is -1; otherwise ``partner_row`` is -1 and the token is in cell ``cell`` of slot
    ``slot``.
    """

    row: Tensor
    partner_row: Tensor
    slot: Tensor
    cell: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class WindowReadPlan:
    """Window keys of every row in position order, oldest in column 0, unused columns -1 at the end.

    Column k of row i is step row ``row[i, k]`` if that is not -1, else cell ``cell[i, k]`` of slot
    ``slot[i]`` if that is not -1, else absent.
    """

    row: Tensor
    cell: Tensor
    slot: Tensor


def ring_store_plan(rows: StepRows, cells: int) -> RingStorePlan:
    """The last ``min(q_len, cells)`` rows of every sequence, for a window ring or a compression ring.

    Earlier rows of a chunk longer than the ring would be overwritten by it, so they are left out and no cell
    is written twice (cache spec, 6; attention spec, 7.4).
    """
    _check_positive("cells", cells)
    end = rows.q_start + rows.q_len
    row = torch.nonzero(rows.positions >= (end - cells)[rows.sequence]).squeeze(1)
    return RingStorePlan(row, rows.slots[rows.sequence[row]], rows.positions[row] % cells, cells)


def compressed_store_plan(rows: StepRows, ratio: int) -> EntryStorePlan:
    """The rows that complete an entry of a layer with this compress ratio, and where it is written.

    Position p completes entry p // ratio when (p + 1) % ratio is 0 (cache spec, 6).
    """
    entries_per_block = _entries_per_block(rows.block_size, ratio)
    row = torch.nonzero((rows.positions + 1) % ratio == 0).squeeze(1)
    number = rows.positions[row] // ratio
    block = rows.block_table[rows.sequence[row], number // entries_per_block]
    return EntryStorePlan(row, block, number % entries_per_block, number * ratio, entries_per_block)


def visible_entries(positions: Tensor, ratio: int) -> Tensor:
    """Entries that a query at each position may see: (p + 1) // ratio, same shape (attention spec, 7.2)."""
    _check_ratio(ratio)
    return (positions.long() + 1) // ratio


def compress_partner_plan(rows: StepRows, cells: int) -> PartnerPlan:
    """For each row that completes a ratio-2 group, where the group's first token is.

    Read the ring before this step's rows are stored in it (attention spec, 7.4). ``cells`` is the length of
    the compression ring.
    """
    _check_positive("cells", cells)
    row = torch.nonzero(rows.positions % 2 == 1).squeeze(1)
    sequence = rows.sequence[row]
    partner = rows.positions[row] - 1
    in_step = partner >= rows.q_start[sequence]
    return PartnerPlan(
        row=row,
        partner_row=torch.where(in_step, row - 1, -1),
        slot=rows.slots[sequence],
        cell=torch.where(in_step, -1, partner % cells),
    )


def entry_slots(block_table: Tensor, entries: Tensor, ratio: int, block_size: int) -> EntrySlots:
    """Locations of entries by number; -1 stays -1.

    Args:
        block_table: [W], or [S, W] with one table per row of ``entries``.
        entries: [K] or [S, K] entry numbers j of a layer with this compress ratio, or -1.

    Raises:
        SlotMapError: an entry number lies behind the table or is below -1, the table has no column, or there is not
            one table for each row of ``entries``.
    """
    _check_integer("block_table", block_table)
    _check_integer("entries", entries)
    if not 1 <= block_table.dim() <= 2 or not entries.dim() or block_table.shape[:-1] != entries.shape[:-1]:
        raise SlotMapError(
            f"block_table has shape {tuple(block_table.shape)}; allowed: (W,) or, for entries of shape "
            f"{tuple(entries.shape)}, one table a row"
        )
    _check_positive("width of block_table", block_table.shape[-1])
    entries_per_block = _entries_per_block(block_size, ratio)
    capacity = block_table.shape[-1] * entries_per_block
    if entries.numel() and not -1 <= int(entries.min()) <= int(entries.max()) < capacity:
        raise SlotMapError(
            f"entries range from {int(entries.min())} to {int(entries.max())}; allowed: -1 to {capacity - 1}"
        )
    number = entries.long()
    absent = number < 0
    column = (number // entries_per_block).clamp(min=0)
    block = torch.gather(block_table.long(), -1, column)
    return EntrySlots(
        block=torch.where(absent, -1, block),
        entry=torch.where(absent, -1, number % entries_per_block),
        entries_per_block=entries_per_block,
    )


def window_read_plan(rows: StepRows, window: int, cells: int, floor: Tensor | None = None) -> WindowReadPlan:
    """Window keys of every row: positions max(0, p - window + 1, floor) .. p, as [R, window] indices.

    Positions of the step itself come from its rows, earlier ones from the ring as it was before the step.
    ``floor`` ([S], default 0) hides positions without valid window state and is at most ``q_start`` (cache
    spec, 9).
    """
    _check_window(window, cells)
    last = rows.positions
    first = torch.maximum(last - (window - 1), _floor(rows, floor)[rows.sequence])
    position = first[:, None] + torch.arange(window, device=last.device)
    visible = position <= last[:, None]
    before = position < rows.q_start[rows.sequence][:, None]
    first_row = (rows.row_start[:-1] - rows.q_start)[rows.sequence][:, None]
    return WindowReadPlan(
        row=torch.where(visible & ~before, first_row + position, -1),
        cell=torch.where(visible & before, position % cells, -1),
        slot=rows.slots[rows.sequence],
    )


def window_history_cells(rows: StepRows, window: int, cells: int, floor: Tensor | None = None) -> Tensor:
    """Ring cells of positions q_start - window .. q_start - 1: [S, window], -1 below the floor and below 0.

    Gathering them before the step's rows are stored gives all the history that the step's windows reach (the
    gather plan of cache spec, 6, whose zero-filled rows are the -1 here).
    """
    _check_window(window, cells)
    first = rows.q_start - window
    return ring_cells(first, rows.q_start - 1, window, cells, floor=_floor(rows, floor))


def window_read_cells(positions: Tensor, window: int, cells: int) -> Tensor:
    """Ring cells of the window of each position [R], oldest first, -1 behind the last: [R, window].

    For a ring that already holds the position itself (cache spec, 6, "window read (decode)").
    """
    _check_window(window, cells)
    positions = positions.long()
    return ring_cells((positions - (window - 1)).clamp(min=0), positions, window, cells)


def draft_store_cells(accepted: Tensor, num_draft_tokens: int, cells: int) -> Tensor:
    """Ring cells of the draft block behind the last accepted position [S]: [S, num_draft_tokens]."""
    accepted = accepted.long()
    return ring_cells(accepted + 1, accepted + num_draft_tokens, num_draft_tokens, cells)


def draft_read_cells(accepted: Tensor, window: int, num_draft_tokens: int, cells: int) -> Tensor:
    """Ring cells that every row of a draft block reads: [S, window + num_draft_tokens].

    They are the last ``window`` positions up to the accepted one and the whole draft block; columns of
    negative positions, at the front, are -1 (cache spec, 12).
    """
    _check_window(window, cells)
    accepted, width = accepted.long(), window + num_draft_tokens
    return ring_cells(accepted - (window - 1), accepted + num_draft_tokens, width, cells)


def ring_cells(first: Tensor, last: Tensor, width: int, cells: int, floor: Tensor | None = None) -> Tensor:
    """Ring cells of consecutive positions: column k is the cell of ``first + k``; [N, width].

    -1 where that position is negative, below ``floor`` or above ``last`` (each [N]). A ring keeps the latest
    ``cells`` positions only, so more than that cannot be read from it.

    Raises:
        SlotMapError: ``width`` exceeds ``cells``.
    """
    _check_positive("cells", cells)
    if width > cells:
        raise SlotMapError(f"width is {width}; allowed: at most cells ({cells})")
    position = first.long()[:, None] + torch.arange(width, device=first.device)
    visible = (position >= 0) & (position <= last[:, None])
    if floor is not None:
        visible &= position >= floor[:, None]
    return torch.where(visible, position % cells, -1)


def _floor(rows: StepRows, floor: Tensor | None) -> Tensor:
    if floor is None:
        return torch.zeros_like(rows.q_start)
    _check_integer("floor", floor)
    if floor.shape != rows.q_start.shape:
        raise SlotMapError(f"floor has shape {tuple(floor.shape)}; allowed: {tuple(rows.q_start.shape)}")
    if bool(((floor < 0) | (floor > rows.q_start)).any()):
        raise SlotMapError(f"floor is {floor.tolist()}; allowed: 0 to q_start ({rows.q_start.tolist()})")
    return floor.long()


def _check_sequences(
    q_start: Tensor, q_len: Tensor, slots: Tensor, block_table: Tensor, block_size: int
) -> None:
    _check_positive("block_size", block_size)
    _check_integer("block_table", block_table)
    if block_table.dim() != 2:
        raise SlotMapError(f"block_table has {block_table.dim()} dimensions; allowed: 2")
    for name, value in (("q_start", q_start), ("q_len", q_len), ("slots", slots)):
        _check_integer(name, value)
        if value.shape != (len(block_table),):
            raise SlotMapError(
                f"{name} has shape {tuple(value.shape)}; allowed: ({len(block_table)},), as block_table"
            )
        if bool((value < 0).any()):
            raise SlotMapError(f"{name} is {value.tolist()}; allowed: 0 or more")
    if bool((block_table < 0).any()):
        raise SlotMapError(f"block_table has block {int(block_table.min())}; allowed: 0 or more")
    capacity = block_table.shape[1] * block_size
    end = q_start.long() + q_len.long()
    if bool((end > capacity).any()):
        raise SlotMapError(
            f"q_start + q_len is {int(end.max())}; allowed: at most {capacity}, "
            f"{block_table.shape[1]} blocks of {block_size} tokens"
        )


def _check_window(window: int, cells: int) -> None:
    _check_positive("window", window)
    if cells < window:
        raise SlotMapError(f"cells is {cells}; allowed: at least the window ({window})")


def _check_integer(name: str, value: Tensor) -> None:
    if value.dtype not in (torch.int32, torch.int64):
        raise SlotMapError(f"{name} has dtype {value.dtype}; allowed: torch.int32, torch.int64")


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise SlotMapError(f"{name} is {value}; allowed: 1 or more")


def _check_ratio(ratio: int) -> None:
    if ratio not in (1, 2):
        raise SlotMapError(f"ratio is {ratio}; allowed: 1, 2")


def _entries_per_block(block_size: int, ratio: int) -> int:
    _check_ratio(ratio)
    if block_size % ratio:
        raise SlotMapError(f"block_size is {block_size}; allowed: multiples of the compress ratio {ratio}")
    return block_size // ratio
