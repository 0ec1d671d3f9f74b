"""Index scores and candidate blocks: written-out formulas, golden choices, and bits that depend on the row alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from di_kernels import instruction_sets
from di_kernels.ops.formats import EntryFormat, encode, round_trip
from di_kernels.ops.indexer import (
    IndexPages,
    candidate_blocks,
    candidate_entries,
    index_scores,
    select_entries,
)
from di_kernels.ops.topk import topk_indices
from di_kernels.reference import indexer as reference
from di_kernels.testing import (
    Hostile,
    assert_same_bits,
    assert_same_values,
    device_backends,
    hostile,
    instructions,
    threads,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytestmark = pytest.mark.parametrize("device", device_backends("indexer"))

BLOCKS, PER_BLOCK, HEADS, DIM = 12, 8, 6, 64
TABLE = ((3, 5, 7, 1), (9, 2, 11, 0))
VISIBLE = (0, 1, 9, 32, 25)


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def case(kind: Hostile, dtype: torch.dtype) -> tuple[Tensor, Tensor, IndexPages, Tensor]:
    """Query, head weights, pages and visible entries of five rows of two sequences."""
    q = hostile(kind, 5, HEADS, DIM, dtype=dtype)
    weights = hostile(Hostile.NORMAL, 5, HEADS, dtype=dtype, seed=1)
    keys = hostile(kind, BLOCKS, PER_BLOCK, DIM, dtype=dtype, seed=2)
    values: Tensor = keys
    scales: Tensor | None = None
    if dtype is torch.bfloat16:
        q = round_trip(q, EntryFormat.MXFP4)
        values, scales = encode(keys, EntryFormat.MXFP4)
    pages = IndexPages(values, scales, torch.tensor(TABLE, dtype=torch.int32), int32(0, 1, 1, 0, 1))
    return q, weights, pages, int32(*VISIBLE)


def moved(pages: IndexPages, device: str) -> IndexPages:
    scales = None if pages.scales is None else pages.scales.to(device)
    return IndexPages(
        pages.values.to(device), scales, pages.block_table.to(device), pages.sequence.to(device)
    )


@pytest.mark.parametrize(
    "kind", [Hostile.NORMAL, Hostile.ZEROS, Hostile.NEGATIVE_ZEROS, Hostile.TINY, Hostile.TIES, Hostile.NAN]
)
def test_release_scores_equal_the_reference(device: str, kind: Hostile, equal_sets: tuple[str, ...]) -> None:
    """Products of MXFP4 values of similar scale add up exactly in float32, so every order gives these bits."""
    q, weights, pages, visible = case(kind, torch.bfloat16)
    actual = index_scores(q.to(device), weights.to(device), moved(pages, device), visible.to(device), None)
    assert_same_values(actual.cpu() + 0.0, reference.index_scores(q, weights, pages, visible, None) + 0.0)


@pytest.mark.parametrize("kind", [Hostile.NORMAL, Hostile.OUTLIERS, Hostile.TIES, Hostile.NAN])
def test_float32_scores_are_near_the_reference(device: str, kind: Hostile) -> None:
    q, weights, pages, visible = case(kind, torch.float32)
    actual = index_scores(
        q.to(device), weights.to(device), moved(pages, device), visible.to(device), None
    ).cpu()
    expected = reference.index_scores(q, weights, pages, visible, None)
    size = reference.index_scores(
        q.abs(), weights.abs(), dataclasses.replace(pages, values=pages.values.abs()), visible, None
    )
    assert torch.equal(actual.isnan(), expected.isnan())
    assert torch.equal(actual.isinf(), expected.isinf())
    finite = expected.isfinite()
    # Two orders of a sum of n products differ by at most n ulps of the sum of the magnitudes.
    assert bool(((actual - expected).abs() <= DIM * 2.0**-23 * size)[finite].all())


def test_relu_comes_per_head_before_the_weighted_sum(device: str) -> None:
    """Field report R47, worked by hand: dots (3, -5), weights (2, -1) give relu(3)*2 + relu(-5)*-1 = 6."""
    keys = torch.zeros(1, 1, 32)
    keys[0, 0, :2] = torch.tensor([3.0, 1.0])
    q = torch.zeros(1, 2, 32)
    q[0, 0, 0], q[0, 1, 1] = 1.0, -5.0
    pages = IndexPages(keys.to(device), None, int32(0)[None].to(device), int32(0).to(device))
    weights = torch.tensor([[2.0, -1.0]], device=device)
    assert index_scores(q.to(device), weights, pages, int32(1).to(device), None).item() == 6.0


def test_release_roundings_by_hand(device: str) -> None:
    """Dots 257 and 255 times 1 + 2^-7; leaving out any of the three roundings would give 516 or 514, not 512."""
    keys, q = torch.zeros(1, 1, 64), torch.zeros(1, 2, 64)
    keys[0, 0, :43] = 6.0
    keys[0, 0, 43] = 1.0
    q[0, :, :42], q[0, :, 42] = 1.0, 0.5  # 42 * 6 + 3 = 255
    q[0, 0, 43] = 2.0
    codes, scales = encode(keys, EntryFormat.MXFP4)
    pages = IndexPages(codes.to(device), scales.to(device), int32(0)[None].to(device), int32(0).to(device))
    weights = torch.full((1, 2), 1.0078125, dtype=torch.bfloat16, device=device)
    score = index_scores(q.to(torch.bfloat16).to(device), weights, pages, int32(1).to(device), None)
    # 257 -> 256, times the weight 258; 255 times the weight 256.99 -> 256; 514 lies between 512 and 516.
    assert score.item() == 512.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_sparse_scores_are_the_dense_ones(device: str, dtype: torch.dtype) -> None:
    q, weights, pages, visible = case(Hostile.OUTLIERS, dtype)
    q, weights, pages, visible = q.to(device), weights.to(device), moved(pages, device), visible.to(device)
    dense = index_scores(q, weights, pages, visible, None)
    entries = torch.randint(-1, 40, (5, 57), generator=torch.Generator().manual_seed(3)).int().to(device)
    sparse = index_scores(q, weights, pages, visible, entries)
    exists = (entries >= 0) & (entries < visible[:, None])
    there = dense.gather(1, entries.clamp(0, dense.shape[1] - 1).long())
    assert_same_bits(sparse, torch.where(exists, there, -math.inf))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_row_depends_on_itself_only(device: str, dtype: torch.dtype) -> None:
    q, weights, pages, visible = case(Hostile.OUTLIERS, dtype)
    q, weights, pages, visible = q.to(device), weights.to(device), moved(pages, device), visible.to(device)
    together = index_scores(q, weights, pages, visible, None)
    with threads(3):
        assert_same_bits(index_scores(q, weights, pages, visible, None), together)
    for row in range(5):
        own = slice(row, row + 1)
        alone = index_scores(
            q[own], weights[own], dataclasses.replace(pages, sequence=pages.sequence[own]), visible[own], None
        )
        assert_same_bits(alone, together[own, : alone.shape[1]])
        assert bool((together[own, alone.shape[1] :] == -math.inf).all())


def test_pages_may_be_views_of_a_block_pool(device: str) -> None:
    """Values, then scales in one region of a block (cache specification, 5), at an odd offset."""
    q, weights, pages, visible = case(Hostile.NORMAL, torch.bfloat16)
    assert pages.scales is not None
    pool = torch.full((BLOCKS, 501), 255, dtype=torch.uint8)
    split = 33 + PER_BLOCK * DIM // 2
    values = pool[:, 33:split].view(BLOCKS, PER_BLOCK, DIM // 2)
    scales = pool[:, split : split + PER_BLOCK * DIM // 32].view(BLOCKS, PER_BLOCK, DIM // 32)
    values.copy_(pages.values)
    scales.copy_(pages.scales)
    expected = index_scores(q, weights, pages, visible, None)
    viewed = dataclasses.replace(pages, values=values, scales=scales)
    assert_same_bits(index_scores(q, weights, viewed, visible, None), expected)


def large_case(dtype: torch.dtype, rows: int) -> tuple[Tensor, Tensor, IndexPages, Tensor]:
    """Rows of three sequences that see up to 3,000 entries, most of them more than 64; keys of every scale."""
    heads, dim, per_block, blocks = 5, 128, 32, 300
    q = hostile(Hostile.OUTLIERS, rows, heads, dim, dtype=dtype, seed=3)
    keys = hostile(Hostile.OUTLIERS, blocks, per_block, dim, dtype=dtype, seed=4)
    keys[::3] *= 2.0**-60
    weights = hostile(Hostile.NORMAL, rows, heads, dtype=dtype, seed=5)
    values: Tensor = keys
    scales: Tensor | None = None
    if dtype is torch.bfloat16:
        q = round_trip(q, EntryFormat.MXFP4)
        values, scales = encode(keys, EntryFormat.MXFP4)
        scales[5, 3, 1], scales[6, 4, 2], scales[7, 5, 3] = 255, 0, 254
    generator = torch.Generator().manual_seed(6)
    table = torch.randperm(blocks, generator=generator)[:294].int().view(3, 98)
    visible = torch.randint(1, 3000, (rows,), generator=generator).int()
    visible[0] = 3000
    sequence = (torch.arange(rows) // 3 % 3).int()
    return q, weights, IndexPages(values, scales, table, sequence), visible


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_equal_instruction_sets_give_the_same_scores(
    device: str, dtype: torch.dtype, equal_sets: tuple[str, ...]
) -> None:
    q, weights, pages, visible = large_case(dtype, 11)
    some = torch.randint(-1, 3000, (11, 150), generator=torch.Generator().manual_seed(7)).int()
    for entries in (None, some):
        results = []
        for name in equal_sets:
            for count in (1, 2):
                with instructions(name), threads(count):
                    results.append(index_scores(q, weights, pages, visible, entries))
        for result in results[1:]:
            assert_same_values(result, results[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("rows", "topk", "block_size", "top"), [(1, 7, 8, 5), (4, 200, 16, 3000), (37, 64, 3, 90)]
)
def test_selection_is_what_the_parts_give(
    device: str,
    dtype: torch.dtype,
    rows: int,
    topk: int,
    block_size: int,
    top: int,
    equal_sets: tuple[str, ...],
) -> None:
    q, weights, pages, visible = large_case(dtype, rows)
    scores = index_scores(q, weights, pages, visible, None)
    blocks = candidate_blocks(scores, visible, block_size, top)
    expected = topk_indices(scores, topk, visible)
    few = candidate_blocks(scores, visible, block_size, 20)
    entries = candidate_entries(few, visible, block_size)
    chosen = topk_indices(
        index_scores(q, weights, pages, visible, entries), topk, (entries >= 0).sum(dim=1, dtype=torch.int32)
    )
    compact = torch.where(chosen < 0, -1, entries.gather(1, chosen.clamp(min=0).long()))
    for name in equal_sets:
        for count in (1, 2, 3):
            with instructions(name), threads(count):
                selected, best = select_entries(
                    q, weights, pages, visible, topk, top_blocks=top, block_size=block_size
                )
                assert best is not None
                assert_same_bits(selected, expected)
                assert_same_bits(best, blocks)
                assert_same_bits(select_entries(q, weights, pages, visible, topk)[0], expected)
                among = select_entries(
                    q, weights, pages, visible, topk, candidates=few, block_size=block_size
                )
                assert_same_bits(among[0], compact)


@pytest.mark.parametrize("kind", list(Hostile))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_selection_of_few_entries(device: str, kind: Hostile, dtype: torch.dtype) -> None:
    q, weights, pages, visible = case(kind, dtype)
    pages, q, weights, visible = moved(pages, device), q.to(device), weights.to(device), visible.to(device)
    scores = index_scores(q, weights, pages, visible, None)
    for topk in (1, 9, 40):
        selected, blocks = select_entries(q, weights, pages, visible, topk, top_blocks=2, block_size=8)
        assert blocks is not None
        assert_same_bits(selected, topk_indices(scores, topk, visible))
        assert_same_bits(blocks, candidate_blocks(scores, visible, 8, 2))


@pytest.mark.parametrize("rows", [8, 20, 41, 70])
def test_selection_does_not_depend_on_how_columns_are_shared_among_threads(device: str, rows: int) -> None:
    q, weights, pages, visible = large_case(torch.bfloat16, rows)
    results = []
    for count in (1, 5):
        with threads(count):
            results.append(select_entries(q, weights, pages, visible, 50, top_blocks=9, block_size=8))
    for one, many in zip(*results, strict=True):
        assert one is not None
        assert many is not None
        assert_same_bits(one, many)


def test_one_block_of_everything_may_be_any_size(device: str) -> None:
    q, weights, pages, visible = case(Hostile.NORMAL, torch.bfloat16)
    pages, q, weights, visible = moved(pages, device), q.to(device), weights.to(device), visible.to(device)
    expected = select_entries(q, weights, pages, visible, 6, top_blocks=1, block_size=32)
    for size in (2**31 - 1, 2**40, 2**63 - 1):
        actual = select_entries(q, weights, pages, visible, 6, top_blocks=1, block_size=size)
        for a, e in zip(actual, expected, strict=True):
            assert a is not None
            assert e is not None
            assert_same_bits(a, e)


def test_selection_equals_the_reference(device: str) -> None:
    q, weights, pages, visible = case(Hostile.TIES, torch.bfloat16)
    for candidates, top in ((None, 2), (int32(0, 2, 3, -1).repeat(5, 1), None)):
        actual = select_entries(
            q, weights, pages, visible, 6, candidates=candidates, top_blocks=top, block_size=8
        )
        expected = reference.select_entries(q, weights, pages, visible, 6, candidates, top, 8)
        for a, e in zip(actual, expected, strict=True):
            assert (a is None and e is None) or torch.equal(a, e)  # type: ignore[arg-type]


def test_selection_refuses_wrong_candidates(device: str) -> None:
    q, weights, pages, visible = case(Hostile.NORMAL, torch.bfloat16)
    with pytest.raises(IndexError, match="candidate block of row 3 is 1; allowed: 3 to 3"):
        select_entries(q, weights, pages, visible, 3, candidates=int32(2, 1).repeat(5, 1), block_size=8)
    with pytest.raises(ValueError, match="top_blocks is 2; it must be None with candidates"):
        select_entries(
            q, weights, pages, visible, 3, candidates=int32(0).repeat(5, 1), top_blocks=2, block_size=8
        )
    with pytest.raises(IndexError, match="visible of row 3 is 33; allowed: 0 to 32"):
        select_entries(q, weights, pages, int32(0, 1, 9, 33, 2), 3)
    with pytest.raises(IndexError, match="block of an entry of row 1 is 12"):
        select_entries(
            q, weights, dataclasses.replace(pages, block_table=torch.full((2, 4), BLOCKS).int()), visible, 3
        )


def test_unused_blocks_and_table_columns_are_not_read(device: str) -> None:
    q, weights, pages, visible = case(Hostile.NORMAL, torch.float32)
    expected = index_scores(q, weights, pages, visible, None)
    values = pages.values.clone()
    values[[4, 6, 8, 10]] = math.nan
    table = torch.cat([pages.block_table, torch.full((2, 3), 10**9, dtype=torch.int32)], dim=1)
    poisoned = dataclasses.replace(pages, values=values, block_table=table)
    assert_same_bits(index_scores(q, weights, poisoned, visible, None), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_heads_score_zero(device: str, dtype: torch.dtype, equal_sets: tuple[str, ...]) -> None:
    q, weights, pages, visible = case(Hostile.NORMAL, dtype)
    expected = reference.index_scores(q[:, :0], weights[:, :0], pages, visible, None)
    for name in equal_sets:
        with instructions(name):
            actual = index_scores(q[:, :0], weights[:, :0], pages, visible, None)
        assert_same_bits(actual.cpu(), expected)


def test_no_rows_and_nothing_visible(device: str) -> None:
    q, weights, pages, _ = case(Hostile.NORMAL, torch.float32)
    nobody = dataclasses.replace(pages, sequence=int32())
    assert index_scores(q[:0], weights[:0], nobody, int32(), None).shape == (0, 0)
    assert index_scores(q, weights, pages, int32(0, 0, -4, 0, 0), None).shape == (5, 0)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("visible", int32(0, 1, 9, 33, 2), "visible of row 3 is 33; allowed: 0 to 32"),
        ("sequence", int32(0, 1, 2, 0, 1), "sequence of row 2 is 2; allowed: 0 to 1"),
        ("block_table", torch.full((2, 4), BLOCKS, dtype=torch.int32), "block of an entry of row 1 is 12"),
    ],
)
def test_places_outside_the_arrays_are_refused(device: str, field: str, value: Tensor, message: str) -> None:
    q, weights, pages, visible = case(Hostile.NORMAL, torch.bfloat16)
    if field == "visible":
        visible = value
    else:
        pages = dataclasses.replace(pages, **{field: value})
    for entries in (None, torch.zeros(5, 3, dtype=torch.int32)):
        with pytest.raises(IndexError, match=message):
            index_scores(q, weights, pages, visible, entries)


@pytest.mark.parametrize(("block_size", "top"), [(8, 2), (4, 3)])
def test_golden_candidates(device: str, golden: Callable[[str], Tensor], block_size: int, top: int) -> None:
    scores, keep = golden("cand.scores"), golden(f"cand.keep_b{block_size}_k{top}")
    visible = torch.arange(1, 41, dtype=torch.int32)
    blocks = candidate_blocks(scores.to(device), visible.to(device), block_size, top).cpu()
    kept = torch.zeros(40, 40 // block_size + 1, dtype=torch.bool)
    kept.scatter_(1, torch.where(blocks < 0, 40 // block_size, blocks).long(), True)
    assert torch.equal(kept[:, :-1].repeat_interleave(block_size, dim=1), keep)


@pytest.mark.parametrize("kind", list(Hostile))
def test_candidates_equal_the_reference(device: str, kind: Hostile) -> None:
    scores = hostile(kind, 8, 67)
    visible = int32(0, 1, 7, 8, 9, 40, 66, 67)
    for block_size, top in ((1, 5), (8, 1), (8, 3), (16, 40)):
        with threads(3):
            blocks = candidate_blocks(scores.to(device), visible.to(device), block_size, top)
        assert_same_bits(blocks.cpu(), reference.candidate_blocks(scores, visible, block_size, top))
        entries = candidate_entries(blocks, visible.to(device), block_size)
        assert_same_bits(entries.cpu(), reference.candidate_entries(blocks.cpu(), visible, block_size))


@pytest.mark.parametrize("block_size", [1, 3, 8, 16, 32])
def test_candidates_on_every_instruction_set(device: str, block_size: int) -> None:
    scores = torch.cat([hostile(kind, 2, 3001, seed=7) for kind in Hostile])
    visible = torch.arange(scores.shape[0], dtype=torch.int32) * 111 + 8
    expected = reference.candidate_blocks(scores, visible, block_size, 50)
    for name in instruction_sets():
        with instructions(name):
            actual = candidate_blocks(scores.to(device), visible.to(device), block_size, 50)
        assert_same_bits(actual.cpu(), expected)


def test_the_newest_block_always_wins_and_ties_go_to_the_lowest(device: str) -> None:
    scores = torch.tensor([[5.0, math.nan, 5.0, math.inf, 5.0, math.inf, -math.inf]], device=device)
    visible = int32(7).to(device)
    # Blocks of two: (5, nan), (5, inf), (5, inf), (-inf); infinity is capped, the last block stands above it.
    assert candidate_blocks(scores, visible, 2, 1)[0].tolist() == [3]
    assert candidate_blocks(scores, visible, 2, 2)[0].tolist() == [1, 3]
    assert candidate_blocks(scores, visible, 2, 6)[0].tolist() == [0, 1, 2, 3, -1, -1]


def test_worked_example_of_candidate_entries(device: str) -> None:
    """21 visible entries, blocks {0, 2} of 8: thirteen entries (attention specification, 9.4)."""
    entries = candidate_entries(int32(0, 2)[None].to(device), int32(21).to(device), 8)[0].tolist()
    assert entries == [*range(8), *range(16, 21), -1, -1, -1]


@given(
    blocks=st.sets(st.integers(0, 9), max_size=6),
    visible=st.integers(0, 60),
    block_size=st.integers(1, 6),
)
@settings(max_examples=100)
def test_candidate_entries_are_the_visible_ones(
    device: str, blocks: set[int], visible: int, block_size: int
) -> None:
    row = [*sorted(blocks), *[-1] * (7 - len(blocks))]
    expected = [e for b in sorted(blocks) for e in range(b * block_size, (b + 1) * block_size) if e < visible]
    actual = candidate_entries(int32(*row)[None].to(device), int32(visible).to(device), block_size)[
        0
    ].tolist()
    assert actual == expected + [-1] * (7 * block_size - len(expected))


def test_candidates_of_everything_select_like_the_dense_scores(device: str) -> None:
    """With as many candidate blocks as there are, the consumer's choice is the unrestricted one."""
    q, weights, pages, visible = case(Hostile.TIES, torch.bfloat16)
    dense = index_scores(q, weights, pages, visible, None)
    entries = candidate_entries(candidate_blocks(dense, visible, 8, 6), visible, 8)
    compact = index_scores(q, weights, pages, visible, entries)
    chosen = topk_indices(compact, 5, visible)
    mapped = torch.where(chosen < 0, -1, entries.gather(1, chosen.clamp(0).long()))
    assert_same_bits(mapped, topk_indices(dense, 5, visible))


def test_wrong_arguments_are_named(device: str) -> None:
    scores, visible = torch.zeros(2, 8, device=device), int32(8, 8).to(device)
    with pytest.raises(ValueError, match="block_size is 0"):
        candidate_blocks(scores, visible, 0, 1)
    with pytest.raises(ValueError, match="top_blocks is 0"):
        candidate_blocks(scores, visible, 4, 0)
    with pytest.raises(IndexError, match="visible of row 1 is 9; allowed: 0 to 8"):
        candidate_blocks(scores, int32(8, 9).to(device), 4, 1)
    with pytest.raises(ValueError, match="block_size is -1"):
        candidate_entries(int32(0, 0)[None].to(device), int32(1).to(device), -1)
