"""Token embedding: exact copies of table rows, zeros for ids outside the table."""

from __future__ import annotations

import pytest
import torch
from di_kernels import instruction_sets
from di_kernels.ops.embedding import embed
from di_kernels.reference import embedding as reference
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

IDS = torch.tensor([0, 6, 6, -1, 7, 3, -(2**31), 2**31 - 1], dtype=torch.int32)


@pytest.mark.parametrize("device", device_backends("embedding"))
@pytest.mark.parametrize("kind", list(Hostile))
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_equals_the_reference(dtype: torch.dtype, stored: torch.dtype, kind: Hostile, device: str) -> None:
    table = hostile(kind, 7, 33, dtype=stored)
    expected = reference.embed(IDS, table, dtype)
    for layout in (table, with_row_gaps(table), misaligned(table)):
        assert_same_values(embed(IDS.to(device), layout.to(device), dtype).cpu(), expected)
    every_second = torch.stack([IDS, IDS + 1], dim=1)[:, 0]
    assert_same_values(embed(every_second.to(device), table.to(device), dtype).cpu(), expected)


def test_ids_outside_the_table_give_positive_zeros() -> None:
    y = embed(IDS, torch.ones(7, 4), torch.float32)
    outside = torch.tensor([False, False, False, True, True, False, True, True])
    assert_same_bits(y[outside], torch.zeros(4, 4))
    assert_same_bits(y[~outside], torch.ones(4, 4))


@pytest.mark.parametrize(("rows", "vocab", "dim"), [(0, 3, 4), (3, 0, 4), (3, 3, 0), (1, 1, 1)])
def test_small_tensors(rows: int, vocab: int, dim: int) -> None:
    y = embed(torch.zeros(rows, dtype=torch.int32), torch.ones(vocab, dim), torch.bfloat16)
    assert_same_bits(y, torch.full((rows, dim), float(vocab > 0), dtype=torch.bfloat16))


def test_rows_do_not_depend_on_each_other_or_on_threads() -> None:
    table = hostile(Hostile.NORMAL, 90, 64)
    ids = torch.arange(90, dtype=torch.int32).flip(0)
    for count in (1, 2):
        with threads(count):
            assert_same_bits(embed(ids, table, torch.float32), table.flip(0))
            assert_same_bits(embed(ids[40:41], table, torch.float32), table[49:50])


def test_bad_arguments_are_refused() -> None:
    table = torch.ones(3, 4)
    with pytest.raises(TypeError, match="ids has dtype"):
        embed(torch.zeros(2, dtype=torch.int64), table, torch.float32)
    with pytest.raises(TypeError, match="table has dtype"):
        embed(IDS, table.double(), torch.float32)
    with pytest.raises(TypeError, match="dtype is"):
        embed(IDS, table, torch.float16)
    with pytest.raises(ValueError, match="ids has shape"):
        embed(IDS[None], table, torch.float32)
    with pytest.raises(ValueError, match="table has shape"):
        embed(IDS, table[0], torch.float32)


@pytest.mark.parametrize("kind", list(Hostile))
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_instruction_set_equals_the_reference(
    dtype: torch.dtype, stored: torch.dtype, kind: Hostile
) -> None:
    for dim in (1, 33, 64):
        table = hostile(kind, 7, dim, dtype=stored)
        for name in instruction_sets():
            with instructions(name):
                assert_same_values(embed(IDS, table, dtype), reference.embed(IDS, table, dtype))
