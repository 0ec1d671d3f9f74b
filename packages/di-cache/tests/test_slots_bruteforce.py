"""Slot maps against loops over positions, on random steps, and chunks against one shot."""

import torch
from di_cache import (
    StepRows,
    compress_partner_plan,
    compressed_store_plan,
    entry_slots,
    ring_store_plan,
    window_history_cells,
    window_read_cells,
    window_read_plan,
)
from hypothesis import given
from hypothesis import strategies as st


@st.composite
def steps(draw: st.DrawFn) -> StepRows:
    """Up to four sequences with disjoint blocks and slots."""
    block_size = draw(st.sampled_from([2, 4, 6, 8]))
    sequences = draw(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 25)), min_size=1, max_size=4))
    width = max(-(-(start + length) // block_size) for start, length in sequences) + draw(st.integers(0, 2))
    blocks = draw(st.permutations(range(1, len(sequences) * width + 1)))
    slots = draw(st.permutations(range(1, len(sequences) + 1)))
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    return StepRows.from_sequences(
        torch.tensor([start for start, _ in sequences], dtype=dtype),
        torch.tensor([length for _, length in sequences], dtype=dtype),
        torch.tensor(slots, dtype=dtype),
        torch.tensor(blocks, dtype=dtype).view(len(sequences), width),
        block_size,
    )


def each_row(rows: StepRows) -> list[tuple[int, int, int]]:
    """(row, sequence, position) by counting."""
    found: list[tuple[int, int, int]] = []
    for sequence, (start, length) in enumerate(zip(rows.q_start.tolist(), rows.q_len.tolist(), strict=True)):
        found += [(len(found) + k, sequence, start + k) for k in range(length)]
    return found


@given(steps())
def test_rows(rows: StepRows) -> None:
    numbers = range(len(rows.positions))
    listed = zip(numbers, rows.sequence.tolist(), rows.positions.tolist(), strict=True)
    assert list(listed) == each_row(rows)


@given(steps(), st.integers(1, 12))
def test_ring_store(rows: StepRows, cells: int) -> None:
    expected = []
    for row, sequence, position in each_row(rows):
        if position >= int(rows.q_start[sequence] + rows.q_len[sequence]) - cells:
            expected.append((row, int(rows.slots[sequence]), position % cells))
    plan = ring_store_plan(rows, cells)
    assert list(zip(plan.row.tolist(), plan.slot.tolist(), plan.cell.tolist(), strict=True)) == expected
    assert len(set(plan.flat.tolist())) == len(expected)


@given(steps(), st.sampled_from([1, 2]))
def test_compressed_store(rows: StepRows, ratio: int) -> None:
    per_block = rows.block_size // ratio
    expected = []
    for row, sequence, position in each_row(rows):
        if (position + 1) % ratio == 0:
            block = int(rows.block_table[sequence, position // rows.block_size])
            entry = (position // ratio) % per_block
            expected.append((row, block, entry, position // ratio * ratio))
    plan = compressed_store_plan(rows, ratio)
    columns = (plan.row, plan.block, plan.entry, plan.rope_position)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    assert len(set(plan.flat.tolist())) == len(expected)
    for row, sequence, position in each_row(rows):
        where = entry_slots(
            rows.block_table[sequence], torch.tensor([position // ratio]), ratio, rows.block_size
        )
        if (position + 1) % ratio == 0:
            assert where.flat.item() == plan.flat[plan.row == row].item()


@given(steps(), st.integers(1, 9))
def test_compress_partner(rows: StepRows, cells: int) -> None:
    by_position = {(sequence, position): row for row, sequence, position in each_row(rows)}
    expected = []
    for row, sequence, position in each_row(rows):
        if position % 2 == 1:
            partner = by_position.get((sequence, position - 1), -1)
            cell = (position - 1) % cells if partner < 0 else -1
            expected.append((row, partner, int(rows.slots[sequence]), cell))
    plan = compress_partner_plan(rows, cells)
    columns = (plan.row, plan.partner_row, plan.slot, plan.cell)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected


@given(steps(), st.integers(1, 9), st.integers(0, 4), st.data())
def test_window_reads(rows: StepRows, window: int, slack: int, data: st.DataObject) -> None:
    cells = window + slack
    floors = [data.draw(st.integers(0, start)) for start in rows.q_start.tolist()]
    by_position = {(sequence, position): row for row, sequence, position in each_row(rows)}
    plan = window_read_plan(rows, window, cells, torch.tensor(floors))
    for row, sequence, position in each_row(rows):
        seen = range(max(0, position - window + 1, floors[sequence]), position + 1)
        sources = [by_position.get((sequence, key), -1) for key in seen]
        padding = [-1] * (window - len(seen))
        assert plan.row[row].tolist() == sources + padding
        in_ring = [key % cells if source < 0 else -1 for key, source in zip(seen, sources, strict=True)]
        assert plan.cell[row].tolist() == in_ring + padding
        assert plan.slot[row] == rows.slots[sequence]
        alone = window_read_cells(torch.tensor([position]), window, cells)[0].tolist()
        keys = range(max(0, position - window + 1), position + 1)
        assert alone == [key % cells for key in keys] + [-1] * (window - len(keys))
    history = window_history_cells(rows, window, cells, torch.tensor(floors))
    for sequence, start in enumerate(rows.q_start.tolist()):
        keys = range(start - window, start)
        assert history[sequence].tolist() == [k % cells if k >= floors[sequence] else -1 for k in keys]


@given(
    lengths=st.lists(st.integers(1, 11), min_size=1, max_size=6),
    start=st.integers(0, 9),
    cells=st.integers(2, 9),
    ratio=st.sampled_from([1, 2]),
)
def test_chunks_equal_one_shot(lengths: list[int], start: int, cells: int, ratio: int) -> None:
    """However a prompt is cut, the same entries are written from the same positions, and rings end equal."""
    table = torch.arange(1, 40).view(1, 39)

    def step(q_start: int, q_len: int) -> StepRows:
        return StepRows.from_sequences(
            torch.tensor([q_start]), torch.tensor([q_len]), torch.tensor([2]), table, block_size=2
        )

    def run(cuts: list[int]) -> tuple[dict[int, tuple[int, int]], dict[int, int]]:
        entries: dict[int, tuple[int, int]] = {}
        ring: dict[int, int] = {}
        position = start
        for length in cuts:
            rows = step(position, length)
            plan = compressed_store_plan(rows, ratio)
            written = rows.positions[plan.row].tolist()
            for slot, source, rope in zip(
                plan.flat.tolist(), written, plan.rope_position.tolist(), strict=True
            ):
                assert slot not in entries
                entries[slot] = (source, rope)
            stored = ring_store_plan(rows, cells)
            ring.update(zip(stored.flat.tolist(), rows.positions[stored.row].tolist(), strict=True))
            position += length
        return entries, ring

    assert run(lengths) == run([sum(lengths)])
