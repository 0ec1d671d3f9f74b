"""Keys into caches: the bits of norm, rotation and encoding one after the other, at the places asked for."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from di_kernels import instruction_sets
from di_kernels.ops.cache import KeyPages, KeyTransform, key_records, store_keys
from di_kernels.ops.formats import EntryFormat, encode_records
from di_kernels.ops.norm import rms_norm
from di_kernels.ops.rope import apply_rope, rope_frequencies, rope_table
from di_kernels.testing import (
    Hostile,
    assert_same_bits,
    assert_same_values,
    device_backends,
    hostile,
    instructions,
    threads,
    with_gaps,
)
from torch import Tensor

TABLE = rope_table(rope_frequencies(16, 10000.0), 50)
POSITIONS = torch.tensor([0, 49, 7, 7, 30], dtype=torch.int32)


def transform_of(dim: int, dtype: torch.dtype = torch.bfloat16) -> KeyTransform:
    return KeyTransform(hostile(Hostile.NORMAL, dim, dtype=dtype, seed=5), 1e-20, TABLE)


def composed(x: Tensor, positions: Tensor, transform: KeyTransform, entry: EntryFormat) -> Tensor:
    normalised = rms_norm(x, transform.weight, transform.eps)
    rotated = apply_rope(normalised.unsqueeze(1), positions, transform.table).squeeze(1)
    return encode_records(rotated, entry)


@pytest.mark.parametrize("device", device_backends("cache"))
@pytest.mark.parametrize("entry", list(EntryFormat))
@pytest.mark.parametrize("kind", list(Hostile))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_records_are_the_composition(
    dtype: torch.dtype, kind: Hostile, entry: EntryFormat, device: str
) -> None:
    x, transform = hostile(kind, 5, 96, dtype=dtype), transform_of(96)
    expected = composed(x, POSITIONS, transform, entry)
    moved = KeyTransform(transform.weight.to(device), transform.eps, transform.table.to(device))
    for layout in (x, with_gaps(x)):
        got = key_records(layout.to(device), POSITIONS.to(device), moved, entry)
        assert_same_values(got.cpu(), expected)
    for name in instruction_sets():
        with instructions(name), threads(2):
            assert_same_values(key_records(x, POSITIONS, transform, entry), expected)
    assert_same_values(key_records(x[3:4], POSITIONS[3:4], transform, entry)[0], expected[3])


def pages_for(entry: EntryFormat, dim: int, apart: bool) -> KeyPages:
    """Four blocks of three entries within a larger pool, every element 77."""
    dtype = torch.float32 if entry is EntryFormat.FLOAT32 else torch.uint8
    width = dim if entry is EntryFormat.FLOAT32 else entry.value_bytes(dim)
    behind = 0 if apart else entry.scale_bytes(dim)
    pool = torch.full((4, 1000), 77, dtype=dtype)
    values = pool[:, 5:].as_strided((4, 3, width + behind), (1000, width + behind + 7, 1))
    if not apart:
        return KeyPages(values)
    scales = torch.full((4, 90), 77, dtype=torch.uint8)
    return KeyPages(values, scales.as_strided((4, 3, entry.scale_bytes(dim)), (90, 20, 1)))


@pytest.mark.parametrize(
    ("entry", "apart"),
    [
        (entry, apart)
        for entry in EntryFormat
        for apart in (False, True)
        if entry.scale_bytes(96) or not apart
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_records_go_where_they_are_asked_to(dtype: torch.dtype, entry: EntryFormat, apart: bool) -> None:
    x, transform = hostile(Hostile.OUTLIERS, 5, 96, dtype=dtype), transform_of(96, torch.float32)
    block, place = (torch.tensor(at, dtype=torch.int32) for at in ([3, 0, 0, 1, 3], [2, 0, 2, 1, 0]))
    records = composed(x, POSITIONS, transform, entry)
    pages, expected = pages_for(entry, 96, apart), pages_for(entry, 96, apart)
    split = records.shape[1] if not apart else entry.value_bytes(96)
    expected.values[block.long(), place.long()] = records[:, :split]
    if expected.scales is not None:
        expected.scales[block.long(), place.long()] = records[:, split:]
    normalised = store_keys(x, POSITIONS, transform, entry, pages, block, place)
    assert_same_bits(normalised, rms_norm(x, transform.weight, transform.eps))
    for got, wanted in ((pages.values, expected.values), (pages.scales, expected.scales)):
        if got is not None and wanted is not None:
            whole, all_wanted = (
                torch.tensor(t.untyped_storage().tolist(), dtype=torch.uint8) for t in (got, wanted)
            )
            assert_same_bits(whole, all_wanted)


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("entry", list(EntryFormat))
def test_few_rows(rows: int, entry: EntryFormat) -> None:
    x, transform = torch.ones(rows, 32), transform_of(32)
    records = key_records(x, POSITIONS[:rows], transform, entry)
    assert_same_bits(records, composed(x, POSITIONS[:rows], transform, entry))


def test_a_table_as_wide_as_the_row_and_an_empty_one() -> None:
    for dim in (16, 32):
        x = hostile(Hostile.NORMAL, 5, dim)
        for width in (0, 2, 6, 16):
            transform = dataclasses.replace(transform_of(dim), table=TABLE[:, :width].contiguous())
            got = key_records(x, POSITIONS, transform, EntryFormat.FP4)
            assert_same_bits(got, composed(x, POSITIONS, transform, EntryFormat.FP4))


def test_bad_arguments_are_refused() -> None:
    x, transform, fp8 = torch.ones(5, 32), transform_of(32), EntryFormat.FP8
    pages = pages_for(fp8, 32, apart=False)
    index = torch.zeros(5, dtype=torch.int32)
    before = pages.values.clone()
    with pytest.raises(IndexError, match="position of row 1 is 50; allowed: 0 to 49"):
        key_records(x, POSITIONS + (POSITIONS == 49).int(), transform, fp8)
    with pytest.raises(IndexError, match="block of row 4 is 4; allowed: 0 to 3"):
        store_keys(x, POSITIONS, transform, fp8, pages, torch.arange(5, dtype=torch.int32), index)
    with pytest.raises(IndexError, match="entry of row 0 is -1; allowed: 0 to 2"):
        store_keys(x, POSITIONS, transform, fp8, pages, index, index - 1)
    assert_same_bits(pages.values, before)
    with pytest.raises(ValueError, match="values has records of 33 elements, expected 18"):
        store_keys(x, POSITIONS, transform, EntryFormat.FP4, pages, index, index)
    with pytest.raises(TypeError, match=r"pages\.values has dtype"):
        store_keys(x, POSITIONS, transform, EntryFormat.FLOAT32, pages, index, index)
    with pytest.raises(ValueError, match="the last dimension of x is 48"):
        key_records(torch.ones(5, 48), POSITIONS, transform_of(48), fp8)
    with pytest.raises(ValueError, match="x has width 8"):
        key_records(torch.ones(5, 8), POSITIONS, transform_of(8), EntryFormat.FLOAT32)
    with pytest.raises(ValueError, match=r"transform.weight has shape \[16\]"):
        key_records(x, POSITIONS, transform_of(16), fp8)
    with pytest.raises(TypeError, match="block has dtype"):
        store_keys(x, POSITIONS, transform, fp8, pages, index.long(), index)
    with pytest.raises(ValueError, match="even number of columns"):
        key_records(x, POSITIONS, dataclasses.replace(transform, table=TABLE[:, :7]), fp8)
