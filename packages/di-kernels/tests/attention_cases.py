"""Arguments of sparse attention for its tests: rows of a sequence, rows with many heads and entries."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeVar

import torch
from di_kernels.ops.attention import EntryKeys, WindowKeys, gathered_attention, sparse_attention
from di_kernels.ops.formats import EntryFormat, decode_records, encode_records
from di_kernels.testing import Hostile, hostile
from torch import Tensor

HEADS, DIM, WINDOW, CELLS, PER_BLOCK = 3, 64, 48, 54, 16
TABLE = ((3, 0, 5, 1), (2, 6, 4, 7))
RELEASE = (torch.bfloat16, EntryFormat.FP8, EntryFormat.FP4)
FLOAT32 = (torch.float32, EntryFormat.FLOAT32, EntryFormat.FLOAT32)
Numerics = tuple[torch.dtype, EntryFormat, EntryFormat]
Part = TypeVar("Part", WindowKeys, EntryKeys)


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@dataclasses.dataclass(frozen=True)
class Case:
    """Arguments of one call of sparse_attention."""

    q: Tensor
    window: WindowKeys
    entries: EntryKeys | None
    sink: Tensor
    scale: float

    def run(self) -> Tensor:
        return sparse_attention(self.q, self.window, self.entries, self.sink, self.scale)

    def row(self, row: int) -> Case:
        """The same call for one row alone; the records stay where they are."""
        own = slice(row, row + 1)
        names = ("slot", "split", "fresh_start", "begin", "end")
        window = dataclasses.replace(self.window, **{name: getattr(self.window, name)[own] for name in names})
        entries = self.entries
        if entries is not None:
            entries = dataclasses.replace(
                entries, sequence=entries.sequence[own], selected=entries.selected[own]
            )
        return dataclasses.replace(self, q=self.q[own], window=window, entries=entries)

    def on(self, device: str) -> Case:
        entries = None if self.entries is None else moved(self.entries, device)
        return Case(self.q.to(device), moved(self.window, device), entries, self.sink.to(device), self.scale)


def moved(part: Part, device: str) -> Part:
    """The same records and row arrays on another device."""
    fields: dict[str, Any] = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    tensors: dict[str, Any] = {name: v.to(device) for name, v in fields.items() if isinstance(v, Tensor)}
    return dataclasses.replace(part, **tensors)


def blocks_of(vectors: Tensor, entry: EntryFormat, per_block: int) -> Tensor:
    """Records of vectors ``[n, dim]`` as ``[n / per_block, per_block, record]``."""
    records = encode_records(vectors, entry)
    return records.view(-1, per_block, records.shape[1])


def selections(rows: int, count: int) -> Tensor:
    """Random ascending entries, the last ones of each row missing."""
    generator = torch.Generator().manual_seed(9)
    chosen = [torch.randperm(4 * PER_BLOCK, generator=generator)[:count].sort().values for _ in range(rows)]
    selected = torch.stack(chosen).to(torch.int32)
    for row in range(rows):
        selected[row, count - row :] = -1
    return selected


def sequence_case(
    numerics: Numerics,
    kind: Hostile,
    start: int,
    rows: int,
    *,
    split: int | None = None,
    window: int = WINDOW,
) -> Case:
    """Rows at positions ``start..`` of one sequence whose window keys before ``split`` are in its ring."""
    dtype, entry, page_entry = numerics
    split = start if split is None else split
    length = start + rows
    records = encode_records(hostile(kind, length, DIM, dtype=dtype, seed=4), entry)
    ring = blocks_of(torch.full((2 * CELLS, DIM), math.nan, dtype=dtype), entry, CELLS)
    for position in range(max(0, split - CELLS), split):
        ring[1, position % CELLS] = records[position]
    positions = torch.arange(start, length, dtype=torch.int32)
    keys = WindowKeys(
        ring=ring,
        fresh=records[split:],
        entry=entry,
        slot=torch.ones(rows, dtype=torch.int32),
        split=torch.full((rows,), split, dtype=torch.int32),
        fresh_start=torch.zeros(rows, dtype=torch.int32),
        begin=(positions - window + 1).clamp(0),
        end=positions + 1,
        width=window,
    )
    selected = selections(rows, 20)
    entries = EntryKeys(
        pages=blocks_of(hostile(kind, 8 * PER_BLOCK, DIM, dtype=dtype, seed=5), page_entry, PER_BLOCK),
        entry=page_entry,
        block_table=torch.tensor(TABLE, dtype=torch.int32),
        sequence=(torch.arange(rows) % 2).int(),
        selected=selected,
    )
    q = hostile(kind, length, HEADS, DIM, dtype=dtype, seed=6)[start:]
    return Case(q, keys, entries, torch.tensor([0.5, -1.0, 3.0]), DIM**-0.5)


def gathered(case: Case, numerics: Numerics) -> Tensor:
    """The same rows through plain keys: every record decoded, every column of the pieces written out."""
    assert case.entries is not None
    dtype = numerics[0]
    window, entries = case.window, case.entries
    ring, fresh, paged = (
        decode_records(records, entry, dtype).reshape(-1, DIM)
        for records, entry in (
            (window.ring, window.entry),
            (window.fresh, window.entry),
            (entries.pages, entries.entry),
        )
    )
    index = torch.full((case.q.shape[0], window.width + entries.selected.shape[1]), -1, dtype=torch.int32)
    for row in range(case.q.shape[0]):
        begin, end, split = int(window.begin[row]), int(window.end[row]), int(window.split[row])
        for column, position in enumerate(range(begin, end)):
            cell = int(window.slot[row]) * CELLS + position % CELLS
            new = ring.shape[0] + int(window.fresh_start[row]) + position - split
            index[row, column] = cell if position < split else new
        for column, number in enumerate(entries.selected[row].tolist()):
            if number >= 0:
                block = int(entries.block_table[entries.sequence[row], number // PER_BLOCK])
                place = block * PER_BLOCK + number % PER_BLOCK
                index[row, window.width + column] = ring.shape[0] + fresh.shape[0] + place
    return gathered_attention(case.q, torch.cat([ring, fresh, paged]), index, case.sink, case.scale)


def wide_case(numerics: Numerics, heads: int, dim: int, rows: int) -> Case:
    """Rows with many heads, elements and entries: more than one block of every loop, and rests of most."""
    dtype, entry, page_entry = numerics
    window, per_block, length = 37, 32, 60
    ring = blocks_of(hostile(Hostile.NORMAL, 2 * CELLS, dim, dtype=dtype, seed=1), entry, CELLS)
    pages = blocks_of(hostile(Hostile.NORMAL, 6 * per_block, dim, dtype=dtype, seed=2), page_entry, per_block)
    positions = torch.arange(length - rows, length, dtype=torch.int32)
    zero = torch.zeros(rows, dtype=torch.int32)
    keys = WindowKeys(
        ring=ring,
        fresh=encode_records(hostile(Hostile.NORMAL, rows, dim, dtype=dtype, seed=3), entry),
        entry=entry,
        slot=zero + 1,
        split=zero + length - rows,
        fresh_start=zero,
        begin=(positions - window + 1).clamp(0),
        end=positions + 1,
        width=window,
    )
    generator = torch.Generator().manual_seed(4)
    selected = torch.stack([torch.randperm(160, generator=generator)[:99].sort().values for _ in range(rows)])
    entries = EntryKeys(
        pages=pages,
        entry=page_entry,
        block_table=int32(3, 0, 5, 1, 2)[None],
        sequence=zero,
        selected=selected.int(),
    )
    q = hostile(Hostile.NORMAL, rows, heads, dim, dtype=dtype, seed=5)
    sink = hostile(Hostile.NORMAL, heads, seed=6)
    return Case(q, keys, entries, sink, dim**-0.5)
