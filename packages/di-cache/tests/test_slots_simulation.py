"""Whole schedules of chunks and verify steps with rejections, run on rings of version numbers.

Every computed row gets a new number. A ring cell, or an entry, holds the number of the row that wrote it, so
reading the number that a position has now proves that the right row was there: not a rejected draft, not a
neighbour, not an older position of the same cell.
"""

from dataclasses import dataclass, field

import pytest
import torch
from di_cache import (
    CacheLayout,
    CacheSpec,
    LayerCacheSpec,
    StepRows,
    compress_partner_plan,
    compressed_store_plan,
    entry_slots,
    ring_store_plan,
    visible_entries,
    window_read_plan,
)
from hypothesis import given
from hypothesis import strategies as st

BLOCK_SIZE = 4
WIDTH = 64
NEVER = -7


@dataclass
class Simulation:
    """Two sequences that share pools; ``numbers[s][p]`` is the latest row computed for position p of s."""

    window: int
    window_cells: int
    compress_cells: int
    length: list[int] = field(default_factory=lambda: [0, 0])
    numbers: list[dict[int, int]] = field(default_factory=lambda: [{}, {}])
    count: int = 0

    def __post_init__(self) -> None:
        self.table = torch.arange(1, 2 * WIDTH + 1).view(2, WIDTH)
        self.window_ring = torch.full((3, self.window_cells), NEVER)
        self.compress_ring = torch.full((3, self.compress_cells), NEVER)
        self.pairs = torch.full(((2 * WIDTH + 1) * (BLOCK_SIZE // 2), 2), NEVER)

    def step(self, q_len: list[int], accepted: list[int]) -> None:
        rows = StepRows.from_sequences(
            torch.tensor(self.length), torch.tensor(q_len), torch.tensor([2, 1]), self.table, BLOCK_SIZE
        )
        number = torch.arange(self.count, self.count + len(rows.positions))
        self.count += len(number)
        for sequence, position, value in zip(
            rows.sequence.tolist(), rows.positions.tolist(), number.tolist(), strict=True
        ):
            self.numbers[sequence][position] = value
        self.check_windows(rows, number)
        self.store_pairs(rows, number)
        for ring in (self.window_ring, self.compress_ring):
            plan = ring_store_plan(rows, ring.shape[1])
            ring[plan.slot, plan.cell] = number[plan.row]
        self.length = [start + kept for start, kept in zip(self.length, accepted, strict=True)]
        self.check_pairs()

    def check_windows(self, rows: StepRows, number: torch.Tensor) -> None:
        plan = window_read_plan(rows, self.window, self.window_cells)
        stored = self.window_ring[plan.slot[:, None], plan.cell.clamp(min=0)]
        found = torch.where(plan.row >= 0, number[plan.row.clamp(min=0)], stored)
        found[(plan.row < 0) & (plan.cell < 0)] = NEVER
        for row, (sequence, position) in enumerate(
            zip(rows.sequence.tolist(), rows.positions.tolist(), strict=True)
        ):
            keys = range(max(0, position - self.window + 1), position + 1)
            expected = [self.numbers[sequence][key] for key in keys]
            assert found[row].tolist() == expected + [NEVER] * (self.window - len(keys))

    def store_pairs(self, rows: StepRows, number: torch.Tensor) -> None:
        partner = compress_partner_plan(rows, self.compress_cells)
        stored = self.compress_ring[partner.slot, partner.cell.clamp(min=0)]
        first = torch.where(partner.partner_row >= 0, number[partner.partner_row.clamp(min=0)], stored)
        plan = compressed_store_plan(rows, 2)
        assert torch.equal(plan.row, partner.row)
        self.pairs[plan.flat] = torch.stack([first, number[plan.row]], 1)

    def check_pairs(self) -> None:
        for sequence, length in enumerate(self.length):
            visible = int(visible_entries(torch.tensor(length - 1), 2))
            slots = entry_slots(self.table[sequence], torch.arange(visible), 2, BLOCK_SIZE)
            known = self.numbers[sequence]
            expected = [[known[2 * entry], known[2 * entry + 1]] for entry in range(visible)]
            assert self.pairs[slots.flat].tolist() == expected


def layout_for(window: int, drafts: int) -> CacheLayout:
    layers = (LayerCacheSpec(0, 2, owns_kv=True, owns_index=True),)
    return CacheLayout.from_spec(CacheSpec(32, 32, window, layers, 1, BLOCK_SIZE, drafts))


@st.composite
def turns(draw: st.DrawFn, drafts: int) -> tuple[int, int]:
    """(rows computed, rows kept): a chunk that keeps all, or a verify step that keeps at least one."""
    if draw(st.booleans()):
        length = draw(st.integers(0, 30))
        return length, length
    length = draw(st.integers(1, drafts + 1))
    return length, draw(st.integers(1, length))


@given(st.integers(1, 9), st.integers(0, 5), st.data())
def test_rings_hold_what_is_read(window: int, drafts: int, data: st.DataObject) -> None:
    layout = layout_for(window, drafts)
    simulation = Simulation(window, layout.window_cells, layout.compress_cells)
    for _ in range(data.draw(st.integers(1, 7))):
        both = [data.draw(turns(drafts)), data.draw(turns(drafts))]
        simulation.step([computed for computed, _ in both], [kept for _, kept in both])


def test_the_released_window_survives_every_rejection() -> None:
    layout = layout_for(window=128, drafts=5)
    simulation = Simulation(128, layout.window_cells, layout.compress_cells)
    simulation.step([130, 3], [130, 3])
    for kept in (1, 6, 2, 5, 3, 4, 1, 1):
        simulation.step([6, 6], [kept, 7 - kept])
    simulation.step([1, 40], [1, 40])


@pytest.mark.parametrize("shortened", ["window", "compress"])
def test_shorter_rings_are_caught(shortened: str) -> None:
    """The check above can fail: rings without room for rejected rows lose a key that is still needed."""
    window_cells, compress_cells = (8, 7) if shortened == "window" else (14, 3)
    simulation = Simulation(8, window_cells, compress_cells)
    simulation.step([8, 8], [8, 8])
    simulation.step([6, 6], [1, 1])
    with pytest.raises(AssertionError):
        simulation.step([6, 6], [1, 1])
