"""Every number of rows has kernels of its own: a row has one value whichever of them computes it."""

from __future__ import annotations

import pytest
import torch
from di_kernels.ops.linear import LinearWeight, WeightFormat, grouped_linear, linear
from di_kernels.ops.moe import ExpertWeights, experts
from di_kernels.packing import pack, pack_experts
from di_kernels.testing import Hostile, assert_same_bits, hostile, instructions, threads
from torch import Tensor

FORMATS = list(WeightFormat)
ROWS = (*range(1, 19), 24, 25, 33, 65, 70, 129)
"""All that meet a group that is decoded in registers, and tiles of different heights of those that do not."""
BLOCKS = (1, 3, 4, 5, 9, 17)
"""Blocks of 32 inputs: parts of a stage that is decoded at once, a whole one, and more."""


def weight_of_wide_scales(form: WeightFormat, n: int, k: int, seed: int = 0) -> LinearWeight:
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator, dtype=torch.uint8)

    if form in (WeightFormat.FLOAT32, WeightFormat.BFLOAT16):
        values = torch.randn(n, k, generator=generator)
        return LinearWeight.dense(values if form is WeightFormat.FLOAT32 else values.to(torch.bfloat16))
    if form is WeightFormat.MXFP4:
        return LinearWeight.mxfp4(integers(0, 256, n, k // 2), integers(110, 140, n, k // 32))
    return LinearWeight.fp8(integers(0, 256, n, k) & 0xBF, integers(110, 140, n // 32, k // 32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("form", FORMATS)
def test_a_product_of_any_number_of_rows(
    form: WeightFormat, blocks: int, dtype: torch.dtype, equal_sets: tuple[str, ...]
) -> None:
    n = 32 if form is WeightFormat.FP8 else 48  # of 16: two that meet rows together, and one alone
    weight = weight_of_wide_scales(form, n, 32 * blocks)
    x = hostile(Hostile.OUTLIERS, max(ROWS), 32 * blocks, dtype=dtype)
    expected = torch.cat([linear(x[i : i + 1], weight) for i in range(len(x))])
    for name in equal_sets:
        with instructions(name):
            for layout in (weight, pack(weight)):
                for rows in ROWS:
                    assert_same_bits(linear(x[:rows], layout), expected[:rows])


@pytest.mark.parametrize("form", FORMATS)
def test_experts_with_any_number_of_rows(form: WeightFormat, equal_sets: tuple[str, ...]) -> None:
    """Runs of groups end within a weight where threads share it; 96 channels are three quantization groups."""

    def matrices(n: int, k: int, seed: int) -> tuple[LinearWeight, ...]:
        return tuple(weight_of_wide_scales(form, n, k, seed + expert) for expert in range(len(ROWS)))

    bank = ExpertWeights(matrices(96, 64, 0), matrices(96, 64, 100), matrices(64, 96, 200))
    ids = torch.repeat_interleave(torch.arange(len(ROWS), dtype=torch.int32), torch.tensor(ROWS))
    ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(1))].unsqueeze(1)
    x = hostile(Hostile.OUTLIERS, len(ids), 64, dtype=torch.bfloat16)
    single = [
        experts(x[i : i + 1], ids[i : i + 1], None, bank, 10.0, quantize_input=True) for i in range(len(ids))
    ]
    for name in equal_sets:
        for count in (1, 2):
            with instructions(name), threads(count):
                for layout in (bank, pack_experts(bank)):
                    got = experts(x, ids, None, layout, 10.0, quantize_input=True)
                    assert_same_bits(got, torch.cat(single))


WIDE = 8224
"""Inputs of a row of which a cache does not hold those of 130 rows: the rows meet the weight in parts of them."""


@pytest.mark.usefixtures("equal_sets")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("rows", [66, 130, 258])
def test_more_inputs_than_a_cache_holds(rows: int, form: WeightFormat) -> None:
    """The last part is of one block, and the last of seven or six groups is alone or not."""
    weight = weight_of_wide_scales(form, 96 if form is WeightFormat.FP8 else 112, WIDE)
    x = hostile(Hostile.OUTLIERS, rows, WIDE, dtype=torch.bfloat16)
    picked = [0, 1, 63, 64, 65, rows - 1]
    expected = torch.cat([linear(x[i : i + 1], weight) for i in picked])
    for count in (1, 2):
        with threads(count):
            for layout in (weight, pack(weight)):
                assert_same_bits(linear(x, layout)[picked], expected)


@pytest.mark.usefixtures("equal_sets")
def test_more_inputs_of_a_block_diagonal_weight_than_a_cache_holds() -> None:
    """Two parts have a share of the third group of rows."""
    weight = weight_of_wide_scales(WeightFormat.BFLOAT16, 80, WIDE)
    x = hostile(Hostile.OUTLIERS, 130 * 2, WIDE, dtype=torch.bfloat16).view(130, 2, WIDE)
    expected = grouped_linear(x[128:], weight, 2)
    for layout in (weight, pack(weight)):
        assert_same_bits(grouped_linear(x, layout, 2)[128:], expected)


@pytest.mark.usefixtures("equal_sets")
@pytest.mark.parametrize("form", FORMATS)
def test_experts_of_more_inputs_than_a_cache_holds(form: WeightFormat) -> None:
    up, gate, down = (
        (weight_of_wide_scales(form, n, k, seed),)
        for seed, (n, k) in enumerate([(96, WIDE), (96, WIDE), (WIDE, 96)])
    )
    bank = ExpertWeights(up, gate, down)
    x = hostile(Hostile.OUTLIERS, 130, WIDE, dtype=torch.bfloat16)
    ids = torch.zeros(130, 1, dtype=torch.int32)
    expected = experts(x[:2], ids[:2], None, bank, 10.0, quantize_input=True)
    for layout in (bank, pack_experts(bank)):
        got = experts(x, ids, None, layout, 10.0, quantize_input=True)
        assert_same_bits(got[:2], expected)


@pytest.mark.usefixtures("equal_sets")
@pytest.mark.parametrize("form", FORMATS)
def test_more_rows_than_are_held_in_blocks_at_once(form: WeightFormat) -> None:
    """Wide inputs are met in blocks of few rows, so that a cache holds them."""
    weight = weight_of_wide_scales(form, 32, 8224)
    x = hostile(Hostile.OUTLIERS, 130, 8224, dtype=torch.bfloat16)
    expected = torch.cat([linear(x[i : i + 1], weight) for i in (0, 63, 64, 65, 127, 128, 129)])
    for layout in (weight, pack(weight)):
        assert_same_bits(linear(x, layout)[[0, 63, 64, 65, 127, 128, 129]], expected)
