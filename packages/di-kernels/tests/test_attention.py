"""Sparse attention: golden bits, the reference on hostile values, and bits that do not depend on where keys lie."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from di_kernels import instruction_sets
from di_kernels.ops.attention import WindowKeys, gathered_attention
from di_kernels.ops.formats import EntryFormat, decode_records
from di_kernels.ops.topk import topk_indices
from di_kernels.reference import attention as reference
from di_kernels.testing import (
    Hostile,
    assert_same_bits,
    assert_same_values,
    device_backends,
    hostile,
    instructions,
    misaligned,
    threads,
    with_row_gaps,
)
from torch import Tensor

from .attention_cases import (
    CELLS,
    DIM,
    FLOAT32,
    PER_BLOCK,
    RELEASE,
    WINDOW,
    Case,
    Numerics,
    gathered,
    int32,
    sequence_case,
    wide_case,
)

pytestmark = pytest.mark.parametrize("device", device_backends("attention"))

NUMERICS = pytest.mark.parametrize("numerics", [RELEASE, FLOAT32], ids=["release", "float32"])


@NUMERICS
@pytest.mark.parametrize(
    "kind", [kind for kind in Hostile if kind.finite and kind not in (Hostile.HUGE, Hostile.EXTREMES)]
)
def test_is_near_the_reference(
    device: str, kind: Hostile, numerics: Numerics, equal_sets: tuple[str, ...]
) -> None:
    case = sequence_case(numerics, kind, 70, 5)
    expected = reference.sparse_attention(case.q, case.window, case.entries, case.sink, case.scale).float()
    actual = case.on(device).run().cpu().float()
    # The output is a mean of the keys. Two orders of a logit's sum move it by an ulp or so of its largest
    # product, hence a probability by as much relative to itself, now and then across a bfloat16 boundary.
    keys = decode_records(case.window.fresh, case.window.entry).abs().max()
    logit = float(case.q.float().abs().max() * keys) * case.scale * DIM
    relative = 4 * (1 + logit) * 2.0**-23 + (2.0**-7 if numerics is RELEASE else 0.0)
    assert bool(actual.isfinite().all())
    assert float((actual - expected).abs().max()) <= relative * float(keys) * 1.5


@NUMERICS
@pytest.mark.parametrize("kind", list(Hostile))
def test_ring_fresh_and_pages_equal_plain_keys(device: str, kind: Hostile, numerics: Numerics) -> None:
    for start in (0, 30, 70):
        case = sequence_case(numerics, kind, start, 4)
        assert_same_values(case.on(device).run().cpu(), gathered(case, numerics))


@pytest.mark.parametrize("entry", [EntryFormat.FP8, EntryFormat.MXFP4, EntryFormat.FLOAT32])
def test_every_format_of_pages(device: str, entry: EntryFormat) -> None:
    numerics = (torch.bfloat16, EntryFormat.FP8, entry)
    case = sequence_case(numerics, Hostile.NORMAL, 50, 3)
    assert_same_bits(case.on(device).run().cpu(), gathered(case, numerics))


@NUMERICS
def test_a_key_is_the_same_wherever_it_lies(device: str, numerics: Numerics) -> None:
    """The same positions, split between ring and fresh rows at every place the ring can hold."""
    start, rows = 60, 5
    expected = sequence_case(numerics, Hostile.OUTLIERS, start, rows).on(device).run()
    for split in range(start + 1):
        moved = sequence_case(numerics, Hostile.OUTLIERS, start, rows, split=split)
        assert_same_bits(moved.on(device).run(), expected)


@NUMERICS
def test_a_chunk_longer_than_the_ring_equals_single_steps(device: str, numerics: Numerics) -> None:
    """Field report R46: a prefill in one chunk, in odd chunks and row by row."""
    length = 2 * CELLS + 11
    whole = sequence_case(numerics, Hostile.NORMAL, 0, length)
    whole = dataclasses.replace(whole, entries=None).on(device)
    expected = whole.run()
    for size in (1, 7, CELLS, CELLS + 1):
        for start in range(0, length, size):
            rows = min(size, length - start)
            chunk = dataclasses.replace(sequence_case(numerics, Hostile.NORMAL, start, rows), entries=None)
            assert_same_bits(chunk.on(device).run(), expected[start : start + rows])


@NUMERICS
def test_a_row_depends_on_itself_only(device: str, numerics: Numerics) -> None:
    case = sequence_case(numerics, Hostile.OUTLIERS, 40, 6).on(device)
    together = case.run()
    for row in range(6):
        assert_same_bits(case.row(row).run(), together[row : row + 1])
    for count in (1, 3):
        with threads(count):
            assert_same_bits(case.run(), together)


@pytest.mark.parametrize(("heads", "dim"), [(1, 32), (5, 96), (33, 64), (64, 512), (70, 160)])
@NUMERICS
def test_equal_instruction_sets_give_the_same_bits(
    device: str, heads: int, dim: int, numerics: Numerics, equal_sets: tuple[str, ...]
) -> None:
    case = wide_case(numerics, heads, dim, 3)
    expected = reference.sparse_attention(case.q, case.window, case.entries, case.sink, case.scale)
    first = case.run()
    error = (first.float() - expected.float()).abs().max()
    assert float(error) <= (2e-5 if numerics is FLOAT32 else 2.0**-5)
    for name in equal_sets:
        for count in (1, 2):
            with instructions(name), threads(count):
                assert_same_bits(case.run(), first)
    for row in range(3):
        assert_same_bits(case.row(row).run(), first[row : row + 1])


@pytest.mark.parametrize("per_block", [1, 3, 12, 96])
@NUMERICS
def test_entries_are_found_in_pages_of_any_size(device: str, per_block: int, numerics: Numerics) -> None:
    """Of a power of two entries or not; the entries 0..95 lie in another order of pages."""
    case = wide_case(numerics, 5, 64, 2)
    assert case.entries is not None
    selected = case.entries.selected.remainder(96).sort(1).values
    places = torch.arange(96)
    found = case.entries.pages[case.entries.block_table[0][places // 32].long(), places % 32]
    blocks = 96 // per_block
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(7))
    pages = torch.empty(blocks, per_block, found.shape[1], dtype=found.dtype)
    pages[order] = found.view(blocks, per_block, -1)
    first = dataclasses.replace(case, entries=dataclasses.replace(case.entries, selected=selected))
    moved_entries = dataclasses.replace(
        case.entries, pages=pages, block_table=order.int()[None], selected=selected
    )
    assert_same_bits(dataclasses.replace(case, entries=moved_entries).run(), first.run())


@pytest.mark.parametrize("kind", list(Hostile))
@NUMERICS
def test_hostile_values_give_the_same_values_on_equal_instruction_sets(
    device: str, kind: Hostile, numerics: Numerics, equal_sets: tuple[str, ...]
) -> None:
    case = sequence_case(numerics, kind, 70, 3)
    first = case.run()
    for name in equal_sets:
        with instructions(name):
            assert_same_values(case.run(), first)


def test_large_values_under_a_sink_that_outweighs_them(device: str, equal_sets: tuple[str, ...]) -> None:
    """The denominator is near the largest number, so its reciprocal is none that bfloat16 arithmetic keeps."""
    keys = torch.full((1, 32), 1e38, dtype=torch.bfloat16)
    q, index = torch.zeros(1, 1, 32, dtype=torch.bfloat16), int32(0)[None]
    for sink in (87.0, 87.5, 88.0, 88.7):
        expected = float(keys[0, 0]) / math.exp(sink)
        for name in equal_sets:
            with instructions(name):
                out = gathered_attention(q, keys, index, torch.tensor([sink]), 1.0)
            assert float(out[0, 0, 0]) == pytest.approx(expected, rel=2.0**-8)


def test_every_scale_of_a_record_is_decoded_alike(device: str) -> None:
    """Powers and E4M3 scales of every byte, NaN, and scales at which values leave the range of normal numbers."""
    dim, count = 64, 256
    codes = torch.randint(0, 256, (count, dim), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    scale = torch.arange(count)[:, None].to(torch.uint8)
    q = torch.zeros(count, 1, dim, dtype=torch.bfloat16)
    zero = torch.zeros(count, dtype=torch.int32)
    one_key = torch.arange(count, dtype=torch.int32)
    for entry, records in (
        (EntryFormat.FP8, torch.cat([codes, scale.repeat(1, 2)], dim=1)),
        (EntryFormat.FP4, torch.cat([codes[:, :32], scale.repeat(1, 4)], dim=1)),
    ):
        keys = WindowKeys(
            records[None], records, entry, zero, zero, zero, begin=one_key, end=one_key + 1, width=1
        )
        case = Case(q, keys, None, torch.full((1,), -math.inf), 1.0)
        values = decode_records(records, entry)
        expected = torch.where(values.isnan().any(dim=1, keepdim=True), math.nan, values)
        tiny = expected.abs() < 2.0**-126
        for name in instruction_sets():
            with instructions(name):
                actual = case.run().float()[:, 0]
            # The weight of the only key is 1; a NaN anywhere makes its logit one. Infinite values meet a zero query.
            finite = expected.isfinite().all(dim=1)
            assert torch.equal(actual[finite & ~tiny.any(dim=1)], expected[finite & ~tiny.any(dim=1)])
            assert bool((actual[finite][tiny[finite]] == 0).all())
            assert bool(actual[~finite].isnan().all())


@NUMERICS
def test_padding_changes_nothing(device: str, numerics: Numerics) -> None:
    case = sequence_case(numerics, Hostile.NORMAL, 40, 4)
    assert case.entries is not None
    selected, table = case.entries.selected, case.entries.block_table
    wider = dataclasses.replace(
        case.entries,
        selected=torch.cat([selected, torch.full((4, 200), -1, dtype=torch.int32)], dim=1),
        block_table=torch.cat([table, torch.full((2, 9), 10**9, dtype=torch.int32)], dim=1),
    )
    expected = case.on(device).run()
    assert_same_bits(dataclasses.replace(case, entries=wider).on(device).run(), expected)


def test_records_without_a_reader_are_not_read(device: str) -> None:
    """Field report R44: freed rings and pages are poisoned with NaN, the output stays the same."""
    case = sequence_case(RELEASE, Hostile.NORMAL, 70, 3)
    assert case.entries is not None
    expected = case.on(device).run()
    ring, paged = case.window.ring.clone(), case.entries.pages.clone()
    ring[0] = 255
    for cell in {p % CELLS for p in range(70 - CELLS, 70)} - {p % CELLS for p in range(70 - WINDOW + 1, 70)}:
        ring[1, cell] = 255
    used = {
        (int(case.entries.block_table[case.entries.sequence[row], n // PER_BLOCK]), n % PER_BLOCK)
        for row in range(3)
        for n in case.entries.selected[row].tolist()
        if n >= 0
    }
    for block in range(8):
        for place in range(PER_BLOCK):
            if (block, place) not in used:
                paged[block, place] = 255
    poisoned = dataclasses.replace(
        case,
        window=dataclasses.replace(case.window, ring=ring),
        entries=dataclasses.replace(case.entries, pages=paged),
    )
    assert_same_bits(poisoned.on(device).run(), expected)


def test_records_may_be_views_of_pools(device: str) -> None:
    """Regions of a block or state pool: odd offsets, and strides of the whole block."""
    case = sequence_case(RELEASE, Hostile.NORMAL, 70, 3)
    assert case.entries is not None

    def in_pool(records: Tensor) -> Tensor:
        size = records[0].numel()
        pool = torch.full((records.shape[0], size + 101), 255, dtype=torch.uint8)
        view = pool[:, 13 : 13 + size].view(records.shape)
        view.copy_(records)
        return view

    viewed = dataclasses.replace(
        case,
        window=dataclasses.replace(
            case.window, ring=in_pool(case.window.ring), fresh=with_row_gaps(case.window.fresh)
        ),
        entries=dataclasses.replace(case.entries, pages=in_pool(case.entries.pages)),
    )
    assert_same_bits(viewed.run(), case.run())


def test_sinks_may_lie_at_any_address(device: str) -> None:
    """A memory-mapped checkpoint aligns nothing."""
    case = sequence_case(RELEASE, Hostile.NORMAL, 70, 3)
    moved = dataclasses.replace(case, sink=misaligned(case.sink))
    assert_same_bits(moved.run(), case.run())
    keys, index = hostile(Hostile.NORMAL, 9, DIM, dtype=torch.bfloat16), int32(*range(9))[None].repeat(3, 1)
    expected = gathered_attention(case.q, keys, index, case.sink, case.scale)
    assert_same_bits(gathered_attention(case.q, keys, index, moved.sink, case.scale), expected)


@pytest.mark.parametrize("topk", [64, 65, 100])
@NUMERICS
def test_no_cliff_where_everything_is_selected(device: str, topk: int, numerics: Numerics) -> None:
    """Field report R47: with top-k at or above the number of entries, sparse equals dense."""
    case = sequence_case(numerics, Hostile.NORMAL, 70, 3)
    assert case.entries is not None
    count = 4 * PER_BLOCK
    scores = hostile(Hostile.TIES, 3, count)
    chosen = topk_indices(scores, topk, int32(count, count, count))
    everything = torch.arange(count, dtype=torch.int32).repeat(3, 1)

    def over(selected: Tensor) -> Tensor:
        assert case.entries is not None
        entries = dataclasses.replace(case.entries, selected=selected)
        return dataclasses.replace(case, entries=entries).on(device).run()

    assert_same_bits(over(chosen), over(everything))


@pytest.mark.parametrize("width", [48, 63, 64, 65, 111, 112, 128, 130, 1000])
@NUMERICS
def test_entries_start_at_the_width_of_the_window(device: str, width: int, numerics: Numerics) -> None:
    """Also in the first rows of a sequence, whose windows have few keys or leave whole pieces empty."""
    for start in (0, 70):
        case = sequence_case(numerics, Hostile.NORMAL, start, 4)
        case = dataclasses.replace(case, window=dataclasses.replace(case.window, width=width))
        assert_same_values(case.on(device).run().cpu(), gathered(case, numerics))


def test_pieces_without_a_key_cost_nothing(device: str) -> None:
    case = sequence_case(RELEASE, Hostile.NORMAL, 70, 3)
    near, far = (
        dataclasses.replace(case, window=dataclasses.replace(case.window, width=width)).on(device)
        for width in (127, 2**31 - 1)
    )
    assert_same_bits(far.run(), near.run())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("begin", -1, "begin of row 1 is -1"),
        ("begin", 10, "begin of row 1 is 10; allowed: 16 to 71"),
        ("slot", 2, "slot of row 1 is 2; allowed: 0 to 1"),
        ("fresh_start", 2, "last fresh key of row 1 is 3; allowed: 0 to 2"),
        ("fresh_start", -1, "first fresh key of row 1 is -1; allowed: 0 to 2"),
    ],
)
def test_window_places_outside_the_arrays_are_refused(
    device: str, field: str, value: int, message: str
) -> None:
    case = sequence_case(RELEASE, Hostile.NORMAL, 70, 3)
    array = getattr(case.window, field).clone()
    array[1] = value
    wrong = dataclasses.replace(case, window=dataclasses.replace(case.window, **{field: array}))
    with pytest.raises(IndexError, match=message):
        wrong.on(device).run()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("selected", 4 * PER_BLOCK, "selected entry of row 1 is 64; allowed: 0 to 63"),
        ("sequence", -1, "sequence of row 1 is -1; allowed: 0 to 1"),
        ("block_table", 8, "block of a selected entry of row 1 is 8; allowed: 0 to 7"),
    ],
)
def test_entry_places_outside_the_arrays_are_refused(
    device: str, field: str, value: int, message: str
) -> None:
    case = sequence_case(RELEASE, Hostile.NORMAL, 70, 3)
    assert case.entries is not None
    array = getattr(case.entries, field).clone()
    array[1] = value
    wrong = dataclasses.replace(case, entries=dataclasses.replace(case.entries, **{field: array}))
    with pytest.raises(IndexError, match=message):
        wrong.on(device).run()


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_of_several_wrong_entries_the_first_one_is_named(device: str, count: int) -> None:
    """Each thread finds one; which comes first in time says nothing."""
    case = sequence_case(RELEASE, Hostile.NORMAL, 70, 7)
    assert case.entries is not None
    selected = case.entries.selected.clone()
    selected[2:, 0] = 64 + torch.arange(5, dtype=torch.int32)
    wrong = dataclasses.replace(case, entries=dataclasses.replace(case.entries, selected=selected)).on(device)
    with threads(count):
        for _ in range(20):
            with pytest.raises(IndexError, match="selected entry of row 2 is 64; allowed: 0 to 63"):
                wrong.run()


def test_more_window_keys_than_columns_are_refused(device: str) -> None:
    case = sequence_case(RELEASE, Hostile.NORMAL, 70, 3)
    narrow = dataclasses.replace(case, window=dataclasses.replace(case.window, width=WINDOW - 1))
    with pytest.raises(IndexError, match="number of window keys of row 0 is 48; allowed: 0 to 47"):
        narrow.on(device).run()


def test_records_of_another_width_are_refused(device: str) -> None:
    case = sequence_case(RELEASE, Hostile.NORMAL, 70, 3)
    wrong = dataclasses.replace(
        case, window=dataclasses.replace(case.window, fresh=case.window.fresh[:, :-1])
    )
    with pytest.raises(ValueError, match="fresh has records of 65 elements, expected 66"):
        wrong.on(device).run()
