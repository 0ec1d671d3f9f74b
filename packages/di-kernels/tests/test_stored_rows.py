"""One and two rows with weights as stored, which are read row by row, 16 blocks of one row at a time."""

from __future__ import annotations

import pytest
import torch
from di_kernels.ops.linear import LinearWeight, WeightFormat, linear
from di_kernels.ops.moe import ExpertWeights, experts
from di_kernels.packing import pack, pack_experts
from di_kernels.testing import (
    Hostile,
    assert_same_bits,
    assert_telling,
    hostile,
    instructions,
    misaligned,
    random_weight,
    threads,
    with_row_gaps,
)

NARROW = [form for form in WeightFormat if form is not WeightFormat.FLOAT32]
BLOCKS = (1, 3, 15, 16, 17, 31, 64, 255, 256, 273)
"""Blocks of 32 inputs: parts of 16, whole ones, and more than the kernel sums up before it turns the sums."""


def assert_one_value(equal_sets: tuple[str, ...], weight: LinearWeight, x: torch.Tensor) -> torch.Tensor:
    """Three rows as stored are computed in another way; so are packed weights. Returns the three."""
    expected = linear(x, weight, out_dtype=torch.float32)
    assert_same_bits(linear(x, pack(weight), out_dtype=torch.float32), expected)
    for name in equal_sets:
        with instructions(name):
            for rows in (x[:1], x[:2]):
                got = linear(rows, weight, out_dtype=torch.float32)
                assert_same_bits(got, expected[: len(rows)])
    return expected


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("form", NARROW)
def test_any_number_of_blocks(form: WeightFormat, blocks: int, equal_sets: tuple[str, ...]) -> None:
    x = hostile(Hostile.OUTLIERS, 3, 32 * blocks, dtype=torch.bfloat16)
    assert_telling(assert_one_value(equal_sets, random_weight(form, 32, 32 * blocks), x))


@pytest.mark.parametrize("n", [1, 15, 16, 17, 47])
@pytest.mark.parametrize("k", [31, 544, 1000])
def test_rows_and_inputs_that_fill_no_group(n: int, k: int, equal_sets: tuple[str, ...]) -> None:
    x = hostile(Hostile.OUTLIERS, 3, k, dtype=torch.bfloat16)
    assert_telling(assert_one_value(equal_sets, random_weight(WeightFormat.BFLOAT16, n, k), x))
    if k % 32 == 0:
        assert_telling(assert_one_value(equal_sets, random_weight(WeightFormat.MXFP4, n, k), x))


@pytest.mark.parametrize("kind", list(Hostile))
@pytest.mark.parametrize("form", NARROW)
def test_hostile_rows(form: WeightFormat, kind: Hostile, equal_sets: tuple[str, ...]) -> None:
    assert_one_value(equal_sets, random_weight(form, 32, 672), hostile(kind, 3, 672, dtype=torch.bfloat16))


@pytest.mark.parametrize("byte", [0, 1, 254, 255])
def test_scales_at_the_ends_of_their_range(byte: int, equal_sets: tuple[str, ...]) -> None:
    weight = random_weight(WeightFormat.MXFP4, 32, 544)
    assert weight.scale is not None
    weight.scale[5, 16] = weight.scale[20, 3] = byte
    x = hostile(Hostile.NORMAL, 3, 544, dtype=torch.bfloat16)
    assert_one_value(equal_sets, weight, x)
    bad = linear(x[:1], weight).isnan()
    # 6 times 2^127 is infinite where scales are in the weights, as they are in those of amx.
    assert bad.sum() == (2 if byte == 255 else bad[0, [5, 20]].sum() if byte == 254 else 0)


@pytest.mark.parametrize("form", NARROW)
@pytest.mark.usefixtures("equal_sets")
def test_rows_are_read_where_they_lie_by_any_number_of_threads(form: WeightFormat) -> None:
    weight = random_weight(form, 96, 544)
    scale = None if weight.scale is None else with_row_gaps(misaligned(weight.scale))
    moved = LinearWeight(form, with_row_gaps(misaligned(weight.data)), scale)
    x = hostile(Hostile.OUTLIERS, 2, 544, dtype=torch.bfloat16)
    expected = linear(x, weight)
    assert_telling(expected)
    for count in (1, 2, 3):
        with threads(count):
            for rows in (1, 2):
                assert_same_bits(linear(x[:rows], moved), expected[:rows])


@pytest.mark.parametrize("form", NARROW)
def test_experts_of_one_and_two_rows(form: WeightFormat, equal_sets: tuple[str, ...]) -> None:
    """Experts that share a row, and some that have one of their own."""

    def matrices(n: int, k: int, seed: int) -> list[LinearWeight]:
        return [random_weight(form, n, k, seed + e, exponent=-4) for e in range(4)]

    w1, w3, w2 = matrices(96, 544, 0), matrices(96, 544, 4), matrices(544, 96, 8)
    x = hostile(Hostile.NORMAL, 3, 544, dtype=torch.bfloat16) / 4
    ids = torch.tensor([[0, 1, 2], [1, 3, 0], [0, -1, 3]], dtype=torch.int32)
    packed = pack_experts(ExpertWeights(tuple(w1), tuple(w3), tuple(w2)))
    expected = experts(x, ids, None, packed, 10.0, quantize_input=True)
    assert_telling(expected[ids >= 0])
    bank = ExpertWeights(tuple(w1), tuple(w3), tuple(w2))
    for name in equal_sets:
        with instructions(name):
            for count in (1, 2):
                with threads(count):
                    got = experts(x, ids, None, bank, 10.0, quantize_input=True)
                    assert_same_bits(got, expected)
                    assert_same_bits(experts(x[:1], ids[:1], None, bank, 10.0, quantize_input=True), got[:1])
