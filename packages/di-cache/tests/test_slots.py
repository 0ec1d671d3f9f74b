"""Slot maps on the examples of the cache spec, and bad step metadata."""

import pytest
import torch
from di_cache import (
    SlotMapError,
    StepRows,
    compress_partner_plan,
    compressed_store_plan,
    draft_read_cells,
    draft_store_cells,
    entry_slots,
    ring_cells,
    ring_store_plan,
    visible_entries,
    window_history_cells,
    window_read_cells,
    window_read_plan,
)
from di_kernels.testing import torch_default
from torch import Tensor

RING = 134
TABLE = [7, 12, 5]


def one(q_start: int, q_len: int, slot: int = 3, table: list[int] | None = None) -> StepRows:
    """A step of one sequence."""
    return StepRows.from_sequences(
        torch.tensor([q_start]),
        torch.tensor([q_len]),
        torch.tensor([slot]),
        torch.tensor([table or TABLE]),
        128,
    )


def decode(position: int, slot: int = 3) -> StepRows:
    """One row at a position that the table [0] * 16 covers."""
    return one(position, 1, slot, [0] * 16)


def flat_read(position: int, slot: int) -> list[int]:
    """Window read of one row as state * ring + cell, -1 for unused columns."""
    cells = window_read_cells(torch.tensor([position]), 128, RING)[0]
    return torch.where(cells < 0, -1, slot * RING + cells).tolist()


def pieces(cells: Tensor, slot: int) -> list[tuple[int, int, int, int]]:
    """Runs of a history as (source, begin, end, destination); source -1 is zero fill (cache spec, 6)."""
    runs: list[tuple[int, int, int, int]] = []
    for at, cell in enumerate(cells.tolist()):
        source = -1 if cell < 0 else slot
        if runs and runs[-1][0] == source and (source < 0 or runs[-1][2] == cell):
            begin, end, destination = runs[-1][1:]
            runs[-1] = (source, begin, end + 1, destination)
        else:
            runs.append((source, max(cell, 0), max(cell, 0) + 1, at))
    return runs


class TestRows:
    def test_rows_of_several_sequences(self) -> None:
        rows = StepRows.from_sequences(
            torch.tensor([5, 0, 9], dtype=torch.int32),
            torch.tensor([2, 3, 1], dtype=torch.int32),
            torch.tensor([4, 1, 2], dtype=torch.int32),
            torch.tensor([[1, 2, 0], [3, 0, 0], [4, 5, 6]], dtype=torch.int32),
            block_size=4,
        )
        assert rows.row_start.tolist() == [0, 2, 5, 6]
        assert rows.sequence.tolist() == [0, 0, 1, 1, 1, 2]
        assert rows.positions.tolist() == [5, 6, 0, 1, 2, 9]
        assert rows.positions.dtype == torch.int64

    def test_an_empty_step(self) -> None:
        empty = torch.zeros(0, dtype=torch.int32)
        rows = StepRows.from_sequences(empty, empty, empty, torch.zeros(0, 1, dtype=torch.int32), 4)
        assert rows.positions.tolist() == []
        assert ring_store_plan(rows, 3).flat.tolist() == []
        assert compressed_store_plan(rows, 2).flat.tolist() == []
        assert window_read_plan(rows, 3, 4).cell.shape == (0, 3)


class TestCompressedStore:
    """Cache spec, sections 5 and 6: block table [7, 12, 5]."""

    @pytest.mark.parametrize(
        "position, ratio, slot, rope_position",
        [
            (0, 1, 896, 0),
            (1, 1, 897, 1),
            (1, 2, 448, 0),
            (127, 1, 1023, 127),
            (127, 2, 511, 126),
            (128, 1, 1536, 128),
            (301, 1, 685, 301),
            (301, 2, 342, 300),
        ],
    )
    def test_completing_rows(self, position: int, ratio: int, slot: int, rope_position: int) -> None:
        plan = compressed_store_plan(one(position, 1), ratio)
        assert plan.row.tolist() == [0]
        assert plan.flat.tolist() == [slot]
        assert plan.rope_position.tolist() == [rope_position]

    @pytest.mark.parametrize("position", [0, 128, 300])
    def test_open_groups_write_nothing(self, position: int) -> None:
        assert compressed_store_plan(one(position, 1), 2).row.tolist() == []

    def test_block_and_entry(self) -> None:
        plan = compressed_store_plan(one(300, 2), 2)
        assert (plan.row.tolist(), plan.block.tolist(), plan.entry.tolist()) == ([1], [5], [22])

    def test_visible_entries(self) -> None:
        positions = torch.tensor([0, 1, 2, 3, 301])
        assert visible_entries(positions, 1).tolist() == [1, 2, 3, 4, 302]
        assert visible_entries(positions, 2).tolist() == [0, 1, 1, 2, 151]

    def test_entry_slots(self) -> None:
        found = entry_slots(torch.tensor(TABLE), torch.tensor([0, 150, -1, 64]), 2, 128)
        assert found.flat.tolist() == [448, 342, -1, 768]
        assert found.block.tolist() == [7, 5, -1, 12]
        assert found.entry.tolist() == [0, 22, -1, 0]

    def test_entry_slots_by_row(self) -> None:
        tables = torch.tensor([[7, 12, 5], [3, 1, 0]], dtype=torch.int32)
        entries = torch.tensor([[301, -1], [2, 128]], dtype=torch.int32)
        assert entry_slots(tables, entries, 1, 128).flat.tolist() == [[685, -1], [386, 128]]


class TestWindowRing:
    """Cache spec, section 6, examples with ring 134."""

    @pytest.mark.parametrize("position, state, slot", [(1000, 3, 464), (5, 3, 407), (134, 1, 134)])
    def test_store(self, position: int, state: int, slot: int) -> None:
        plan = ring_store_plan(decode(position, state), RING)
        assert plan.row.tolist() == [0]
        assert plan.flat.tolist() == [slot]

    def test_a_long_chunk_stores_its_last_rows_once_each(self) -> None:
        plan = ring_store_plan(one(10, 300), RING)
        assert plan.row.tolist() == list(range(166, 300))
        assert sorted(plan.cell.tolist()) == list(range(RING))
        assert plan.cell[-1] == 309 % RING

    def test_read(self) -> None:
        assert flat_read(1000, 3) == [*range(471, 536), *range(402, 465)]
        assert flat_read(5, 3) == [*range(402, 408), *[-1] * 122]
        assert flat_read(134, 1) == [*range(141, 268), 134]

    @pytest.mark.parametrize(
        "q_start, floor, expected",
        [
            (300, 0, [(3, 38, 134, 0), (3, 0, 32, 96)]),
            (50, 0, [(-1, 0, 78, 0), (3, 0, 50, 78)]),
            (0, 0, [(-1, 0, 128, 0)]),
            (256, 200, [(-1, 0, 72, 0), (3, 66, 122, 72)]),
        ],
    )
    def test_history(self, q_start: int, floor: int, expected: list[tuple[int, int, int, int]]) -> None:
        rows = one(q_start, 1)
        cells = window_history_cells(rows, 128, RING, torch.tensor([floor]))
        assert pieces(cells[0], 3) == expected
        if floor == 0:
            assert torch.equal(cells, window_history_cells(rows, 128, RING))

    def test_read_plan_joins_ring_and_step(self) -> None:
        plan = window_read_plan(one(3, 3), window=4, cells=6)
        assert plan.cell.tolist() == [[0, 1, 2, -1], [1, 2, -1, -1], [2, -1, -1, -1]]
        assert plan.row.tolist() == [[-1, -1, -1, 0], [-1, -1, 0, 1], [-1, 0, 1, 2]]
        assert plan.slot.tolist() == [3, 3, 3]

    def test_floor_hides_older_positions(self) -> None:
        plan = window_read_plan(one(3, 2), window=4, cells=6, floor=torch.tensor([2]))
        assert plan.cell.tolist() == [[2, -1, -1, -1], [2, -1, -1, -1]]
        assert plan.row.tolist() == [[-1, 0, -1, -1], [-1, 0, 1, -1]]


class TestDraftBlock:
    """Cache spec, section 12: state 3, ring 134, five drafts."""

    def test_far_from_the_start(self) -> None:
        accepted = torch.tensor([1002])
        store = draft_store_cells(accepted, 5, RING)[0] + 3 * RING
        read = draft_read_cells(accepted, 128, 5, RING)[0] + 3 * RING
        assert store.tolist() == [467, 468, 469, 470, 471]
        assert read.shape == (133,)
        assert read[[0, -1]].tolist() == [473, 471]

    def test_near_the_start(self) -> None:
        read = draft_read_cells(torch.tensor([3]), 128, 5, RING)[0]
        assert read.tolist() == [*[-1] * 124, *range(9)]


class TestCompressRing:
    """Cache spec, section 7: ring of 7 cells; attention spec, section 7.4."""

    def test_store_keeps_the_last_rows(self) -> None:
        plan = ring_store_plan(one(4, 10), 7)
        assert plan.row.tolist() == [3, 4, 5, 6, 7, 8, 9]
        assert plan.cell.tolist() == [0, 1, 2, 3, 4, 5, 6]

    def test_partner_inside_the_step(self) -> None:
        plan = compress_partner_plan(one(8, 4), 7)
        assert (plan.row.tolist(), plan.partner_row.tolist()) == ([1, 3], [0, 2])
        assert plan.cell.tolist() == [-1, -1]

    def test_partner_before_the_step(self) -> None:
        plan = compress_partner_plan(one(301, 2), 7)
        assert (plan.row.tolist(), plan.partner_row.tolist()) == ([0], [-1])
        assert (plan.slot.tolist(), plan.cell.tolist()) == ([3], [300 % 7])


SEQUENCE = {"q_start": [0], "q_len": [1], "slots": [1], "block_table": [[1, 2]]}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"q_start": [-1]}, r"q_start is \[-1\]; allowed: 0 or more"),
        ({"q_len": [-2]}, r"q_len is \[-2\]; allowed: 0 or more"),
        ({"slots": [-1]}, r"slots is \[-1\]; allowed: 0 or more"),
        ({"slots": [1, 2]}, r"slots has shape \(2,\); allowed: \(1,\)"),
        ({"block_table": [1]}, "block_table has 1 dimensions; allowed: 2"),
        ({"block_table": 1}, "block_table has 0 dimensions; allowed: 2"),
        ({"block_table": [[1, -1]]}, "block_table has block -1; allowed: 0 or more"),
        ({"q_start": [8]}, r"q_start \+ q_len is 9; allowed: at most 8, 2 blocks of 4 tokens"),
        ({"q_start": [1.0]}, "q_start has dtype torch.float32; allowed: torch.int32, torch.int64"),
    ],
)
def test_bad_sequences_are_named(change: dict[str, object], message: str) -> None:
    values = {name: torch.tensor(value) for name, value in (SEQUENCE | change).items()}
    with pytest.raises(SlotMapError, match=message):
        StepRows.from_sequences(**values, block_size=4)


def test_bad_arguments_are_named() -> None:
    rows = one(5, 2)
    table, entry = torch.tensor(TABLE), torch.tensor([192])
    with pytest.raises(SlotMapError, match="cells is 0; allowed: 1 or more"):
        ring_store_plan(rows, 0)
    with pytest.raises(SlotMapError, match="ratio is 3; allowed: 1, 2"):
        compressed_store_plan(rows, 3)
    with pytest.raises(SlotMapError, match="ratio is 0; allowed: 1, 2"):
        visible_entries(rows.positions, 0)
    with pytest.raises(SlotMapError, match="entries range from 192 to 192; allowed: -1 to 191"):
        entry_slots(table, entry, 2, 128)
    with pytest.raises(SlotMapError, match="entries range from -2 to -2"):
        entry_slots(table, torch.tensor([-2]), 1, 128)
    with pytest.raises(SlotMapError, match=r"block_table has shape \(2, 3\); allowed: \(W,\) or"):
        entry_slots(torch.stack([table, table]), torch.tensor([0]), 1, 128)
    with pytest.raises(SlotMapError, match="width of block_table is 0"):
        entry_slots(table[:0], torch.tensor([-1]), 1, 128)
    with pytest.raises(SlotMapError, match="block_size is 5; allowed: multiples of the compress ratio 2"):
        entry_slots(table, torch.tensor([0]), 2, 5)
    with pytest.raises(SlotMapError, match=r"cells is 7; allowed: at least the window \(8\)"):
        window_read_plan(rows, 8, 7)
    with pytest.raises(SlotMapError, match=r"floor is \[6\]; allowed: 0 to q_start \(\[5\]\)"):
        window_read_plan(rows, 8, 9, torch.tensor([6]))
    with pytest.raises(SlotMapError, match=r"floor has shape \(2,\); allowed: \(1,\)"):
        window_history_cells(rows, 8, 9, torch.tensor([0, 0]))
    with pytest.raises(SlotMapError, match=r"width is 5; allowed: at most cells \(4\)"):
        ring_cells(torch.tensor([0]), torch.tensor([9]), 5, 4)


@pytest.mark.parametrize("default", [torch.float64, torch.device("meta")], ids=str)
def test_maps_do_not_depend_on_the_defaults_of_torch(default: torch.dtype | torch.device) -> None:
    numbers = [torch.tensor(values) for values in ([3, 0], [4, 2], [1, 2], [[1, 2], [3, 0]])]

    def maps() -> list[Tensor]:
        rows = StepRows.from_sequences(*numbers, block_size=4)
        stored, entries = ring_store_plan(rows, 7), compressed_store_plan(rows, 2)
        partners, read = compress_partner_plan(rows, 7), window_read_plan(rows, 3, 7)
        return [
            *(rows.row_start, rows.sequence, rows.positions, stored.flat, entries.flat),
            *(partners.row, partners.partner_row, partners.cell, read.row, read.cell),
            window_history_cells(rows, 3, 7),
            window_read_cells(rows.positions, 3, 7),
            draft_store_cells(numbers[0], 2, 7),
            draft_read_cells(numbers[0], 3, 2, 7),
            visible_entries(rows.positions, 2),
            entry_slots(numbers[3], torch.tensor([[0, -1], [1, 0]], device="cpu"), 2, 4).flat,
        ]

    expected = maps()
    with torch_default(default):
        actual = maps()
    for got, wanted in zip(actual, expected, strict=True):
        assert torch.equal(got, wanted)
