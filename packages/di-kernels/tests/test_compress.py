"""Pair pooling: the formula, the reference on hostile values, and entries that do not depend on the chunks."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from di_kernels import instruction_sets
from di_kernels.ops.compress import PairRows, compress_pairs
from di_kernels.reference import compress as reference
from di_kernels.testing import (
    Hostile,
    assert_same_bits,
    assert_same_values,
    device_backends,
    hostile,
    instructions,
    threads,
    with_row_gaps,
)
from torch import Tensor

pytestmark = pytest.mark.parametrize("device", device_backends("compress"))

DTYPES = (torch.float32, torch.bfloat16)
CELLS = 7


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def pairs(last: list[int], first: list[int], slot: list[int], cell: list[int], device: str) -> PairRows:
    return PairRows(*(int32(*values).to(device) for values in (last, first, slot, cell)))


def to_cpu(rows: PairRows) -> PairRows:
    return PairRows(rows.last.cpu(), rows.first.cpu(), rows.slot.cpu(), rows.cell.cpu())


def test_worked_example(device: str) -> None:
    """Scores (0, ln 3) weigh the latents (1, 5) with 1/4 and 3/4 (attention specification, 7.2)."""
    fresh = torch.tensor([[[0.0], [1.0]], [[math.log(3)], [5.0]]], device=device)
    ring = torch.zeros(1, CELLS, 2, 1, device=device)
    for dtype in DTYPES:
        pooled = compress_pairs(fresh, ring, pairs([1], [0], [0], [0], device), dtype)
        assert pooled.dtype == dtype
        assert pooled.item() == pytest.approx(4.0, abs=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 2, 31, 64, 65, 127])
@pytest.mark.parametrize("kind", list(Hostile))
def test_equals_the_reference(device: str, kind: Hostile, dim: int, dtype: torch.dtype) -> None:
    fresh, ring = hostile(kind, 5, 2, dim), hostile(kind, 3, CELLS, 2, dim, seed=1)
    rows = pairs([1, 3, 4, 0], [0, -1, 3, -1], [0, 2, 0, 1], [0, 6, 0, 5], device)
    actual = compress_pairs(fresh.to(device), ring.to(device), rows, dtype).cpu().float()
    expected = reference.compress_pairs(fresh, ring, to_cpu(rows), dtype).float()
    assert torch.equal(actual.isnan(), expected.isnan())
    # exp differs by an ulp between libraries, which moves either weight by a few; then one rounding.
    latents = torch.cat([fresh.flatten(0, 1), ring.flatten(0, 2)]).nan_to_num(0.0, 0.0, 0.0)
    error = float(latents.abs().max()) * (4 * 2.0**-23 if dtype is torch.float32 else 2.0**-8)
    finite = expected.isfinite()
    assert torch.equal(actual[~finite & ~expected.isnan()], expected[~finite & ~expected.isnan()])
    assert bool(((actual - expected).abs() <= error)[finite].all())


def test_a_dominating_score_takes_all(device: str) -> None:
    fresh = torch.tensor([[[300.0], [7.0]], [[-300.0], [1e30]], [[-math.inf], [9.0]]], device=device)
    ring = torch.zeros(1, CELLS, 2, 1, device=device)
    rows = pairs([1, 2, 0], [0, 0, 2], [0, 0, 0], [0, 0, 0], device)
    assert compress_pairs(fresh, ring, rows, torch.float32).flatten().tolist() == [7.0, 7.0, 7.0]


@pytest.mark.parametrize("length", range(1, 12))
@pytest.mark.parametrize("dtype", DTYPES)
def test_entries_do_not_depend_on_the_chunks(device: str, length: int, dtype: torch.dtype) -> None:
    """Field report R46: lengths 1..4*ratio+3, cut anywhere; the first half of a pair may be in the ring."""
    tokens = hostile(Hostile.OUTLIERS, length, 2, 24).to(device)
    whole = pool_in_chunks(tokens, [0, length], dtype)
    assert whole.shape[0] == length // 2
    for cut in range(1, length):
        assert_same_bits(pool_in_chunks(tokens, [0, cut, length], dtype), whole)
    assert_same_bits(pool_in_chunks(tokens, list(range(length + 1)), dtype), whole)


def pool_in_chunks(tokens: Tensor, cuts: list[int], dtype: torch.dtype) -> Tensor:
    """Entries of a sequence whose tokens come in chunks; earlier ones are kept in a ring as the cache keeps them."""
    ring = torch.full((2, CELLS, *tokens.shape[1:]), math.nan, device=tokens.device)
    entries = []
    for start, stop in itertools.pairwise(cuts):
        seconds = [p for p in range(start, stop) if p % 2 == 1]
        rows = pairs(
            [p - start for p in seconds],
            [p - 1 - start if p > start else -1 for p in seconds],
            [1] * len(seconds),
            [(p - 1) % CELLS for p in seconds],
            str(tokens.device),
        )
        entries.append(compress_pairs(tokens[start:stop], ring, rows, dtype))
        for p in range(max(start, stop - CELLS), stop):
            ring[1, p % CELLS] = tokens[p]
    return torch.cat(entries)


def test_a_pair_depends_on_itself_only(device: str) -> None:
    fresh, ring = (
        hostile(Hostile.NORMAL, 40, 2, 65).to(device),
        hostile(Hostile.NORMAL, 2, 7, 2, 65).to(device),
    )
    last, first = list(range(1, 40, 2)), [-1 if i % 3 == 0 else 2 * i for i in range(20)]
    slot, cell = [i % 2 for i in range(20)], [i % 7 for i in range(20)]
    together = compress_pairs(fresh, ring, pairs(last, first, slot, cell, device), torch.float32)
    for i in range(20):
        alone = pairs(last[i : i + 1], first[i : i + 1], slot[i : i + 1], cell[i : i + 1], device)
        assert_same_bits(compress_pairs(fresh, ring, alone, torch.float32), together[i : i + 1])
    with threads(3):
        assert_same_bits(
            compress_pairs(fresh, ring, pairs(last, first, slot, cell, device), torch.float32), together
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", list(Hostile))
def test_every_instruction_set_pools_alike(device: str, kind: Hostile, dtype: torch.dtype) -> None:
    fresh, ring = hostile(kind, 5, 2, 83), hostile(kind, 3, CELLS, 2, 83, seed=1)
    rows = pairs([1, 3, 4, 0], [0, -1, 3, -1], [0, 2, 0, 1], [0, 6, 0, 5], device)
    expected = compress_pairs(fresh, ring, rows, dtype)
    for name in instruction_sets():
        for count in (1, 2):
            with instructions(name), threads(count):
                assert_same_values(compress_pairs(fresh, ring, rows, dtype), expected)


def test_the_ring_may_be_a_view_of_a_state_pool(device: str) -> None:
    fresh, ring = (
        hostile(Hostile.NORMAL, 3, 2, 33).to(device),
        hostile(Hostile.NORMAL, 4, 7, 2, 33).to(device),
    )
    rows = pairs([0, 2], [-1, 1], [3, 0], [5, 0], device)
    pool = torch.full((4, 1000), 77.0, device=device)
    view = pool[:, 11 : 11 + ring[0].numel()].view(4, 7, 2, 33)
    view.copy_(ring)
    expected = compress_pairs(fresh, ring, rows, torch.bfloat16)
    assert_same_bits(compress_pairs(fresh, view, rows, torch.bfloat16), expected)
    assert_same_bits(
        compress_pairs(with_row_gaps(fresh), with_row_gaps(ring), rows, torch.bfloat16), expected
    )


def test_no_pairs(device: str) -> None:
    nothing = pairs([], [], [], [], device)
    out = compress_pairs(
        torch.zeros(3, 2, 8, device=device), torch.zeros(1, 7, 2, 8, device=device), nothing, torch.bfloat16
    )
    assert out.shape == (0, 8)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (([3], [0], [0], [0]), "last of row 0 is 3; allowed: 0 to 2"),
        (([1], [-2], [0], [0]), "first of row 0 is -2; allowed: -1 to 2"),
        (([1], [-1], [2], [0]), "slot of row 0 is 2; allowed: 0 to 1"),
        (([1], [-1], [0], [7]), "cell of row 0 is 7; allowed: 0 to 6"),
    ],
)
def test_places_outside_the_arrays_are_refused(
    device: str, rows: tuple[list[int], list[int], list[int], list[int]], message: str
) -> None:
    fresh, ring = torch.zeros(3, 2, 8, device=device), torch.zeros(2, 7, 2, 8, device=device)
    with pytest.raises(IndexError, match=message):
        compress_pairs(fresh, ring, pairs(*rows, device), torch.float32)
