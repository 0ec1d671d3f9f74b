"""Packed weights: the matrix comes back, products keep their bits in every layout and on every thread count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from di_kernels import KernelUnavailableError
from di_kernels.ops.linear import LinearWeight, WeightFormat, grouped_linear, linear
from di_kernels.ops.moe import ExpertWeights, experts
from di_kernels.packing import pack, pack_all, pack_experts, packed_from, packed_shape, unpack
from di_kernels.testing import (
    Hostile,
    assert_same_bits,
    assert_same_values,
    assert_telling,
    hostile,
    instructions,
    misaligned,
    random_weight,
    threads,
    with_bad_rows,
    with_row_gaps,
)

FORMATS = list(WeightFormat)


def sizes() -> Iterator[tuple[WeightFormat, int, int]]:
    for form in FORMATS:
        yield from ((form, 32, 32), (form, 96, 160), (form, 64, 1056))
        if form is not WeightFormat.FP8:
            yield from ((form, 1, 64), (form, 17, 96))
    for form in (WeightFormat.FLOAT32, WeightFormat.BFLOAT16):
        yield from ((form, 3, 1), (form, 16, 33), (form, 33, 7))
        yield from ((form, 0, 32), (form, 17, 0), (form, 0, 0))


def every_byte(form: WeightFormat, n: int, k: int) -> LinearWeight:
    """A random weight; FP8 and MXFP4 with every code and every scale byte, NaN and zero included."""
    weight = random_weight(form, n, k)
    if weight.scale is None:
        return weight
    generator = torch.Generator().manual_seed(1)
    data, scale = (
        torch.randint(0, 256, part.shape, generator=generator, dtype=torch.uint8)
        for part in (weight.data, weight.scale)
    )
    return LinearWeight(form, data, scale)


@pytest.mark.parametrize(("form", "n", "k"), list(sizes()))
def test_the_matrix_comes_back(form: WeightFormat, n: int, k: int) -> None:
    weight = every_byte(form, n, k)
    packed = pack(weight)
    assert (packed.shape, packed.is_packed, packed.nbytes) == ((n, k), True, packed.data.numel())
    back = unpack(packed)
    assert_same_bits(back.data, weight.data)
    if weight.scale is not None:
        assert back.scale is not None
        assert_same_bits(back.scale, weight.scale)
    assert_same_bits(packed.dequantize(), weight.dequantize())
    assert pack(packed) is packed


@pytest.mark.parametrize("form", FORMATS)
def test_packing_does_not_depend_on_threads_instruction_set_or_where_the_weight_lies(
    form: WeightFormat, equal_sets: tuple[str, ...]
) -> None:
    weight = every_byte(form, 96, 544)
    expected = pack(weight).data
    scale = None if weight.scale is None else with_row_gaps(misaligned(weight.scale))
    moved = LinearWeight(form, with_row_gaps(misaligned(weight.data)), scale)
    for name in equal_sets:
        with instructions(name):
            for count in (1, 2):
                with threads(count):
                    assert_same_bits(pack(weight).data, expected)
                    assert_same_bits(pack(moved).data, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize(("form", "n", "k"), [*((form, 96, 1056) for form in FORMATS), (FORMATS[1], 17, 64)])
def test_a_product_has_one_value(
    form: WeightFormat, n: int, k: int, quantize: bool, dtype: torch.dtype, equal_sets: tuple[str, ...]
) -> None:
    """On instruction sets that agree, as stored and packed, for one row and for many."""
    weight = random_weight(form, n, k)
    packed = pack(weight)
    x = hostile(Hostile.OUTLIERS, 30, k, dtype=dtype)
    expected = linear(x, weight, quantize_input=quantize, out_dtype=torch.float32)
    assert_telling(expected)
    for name in equal_sets:
        with instructions(name):
            for rows in (1, 2, 4, 8, 9, 12, 13, 25, 30):
                for matrix in (weight, packed):
                    got = linear(x[:rows], matrix, quantize_input=quantize, out_dtype=torch.float32)
                    assert_same_bits(got, expected[:rows])


@pytest.mark.parametrize("form", FORMATS)
def test_one_row_has_one_value_however_many_blocks_there_are(
    form: WeightFormat, equal_sets: tuple[str, ...]
) -> None:
    """Blocks are added a few side by side; the last ones may be fewer."""
    for blocks in range(1, 10):
        weight = random_weight(form, 96, 32 * blocks, seed=blocks)
        packed = pack(weight)
        x = hostile(Hostile.OUTLIERS, 3, 32 * blocks, dtype=torch.bfloat16, seed=blocks)
        expected = linear(x, weight, quantize_input=True, out_dtype=torch.float32)
        assert_telling(expected)
        for name in equal_sets:
            for count in (1, 2):
                with instructions(name), threads(count):
                    got = linear(x[1:2], packed, quantize_input=True, out_dtype=torch.float32)
                    assert_same_bits(got, expected[1:2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", list(Hostile))
@pytest.mark.parametrize("form", FORMATS)
def test_hostile_rows_have_one_value(
    form: WeightFormat, kind: Hostile, dtype: torch.dtype, equal_sets: tuple[str, ...]
) -> None:
    weight = random_weight(form, 32, 96)
    x = hostile(kind, 10, 96, dtype=dtype)
    expected = linear(x, weight)
    for name in equal_sets:
        with instructions(name):
            assert_same_bits(linear(x, pack(weight)), expected)
            assert_same_bits(linear(x[3:4], pack(weight)), expected[3:4])


@pytest.mark.parametrize("form", FORMATS)
def test_a_weight_that_is_no_number_touches_its_own_row_only(
    form: WeightFormat, equal_sets: tuple[str, ...]
) -> None:
    weight = random_weight(form, 96, 96)
    bad = with_bad_rows(weight)
    rows = bad.dequantize().isnan().any(1)
    assert 0 < rows.sum() < 48
    x = hostile(Hostile.NORMAL, 20, 96, dtype=torch.bfloat16)
    expected = torch.where(rows, torch.nan, linear(x, weight, out_dtype=torch.float32))
    for name in equal_sets:
        for matrix in (bad, pack(bad)):
            with instructions(name):
                for count in (1, 2, 3, 20):
                    got = linear(x[:count], matrix, out_dtype=torch.float32)
                    assert_same_values(got, expected[:count])


@pytest.mark.parametrize("form", FORMATS)
def test_groups_and_rows_of_packed_weights(form: WeightFormat) -> None:
    weight = random_weight(form, 96, 64)
    packed = pack(weight)
    x = hostile(Hostile.OUTLIERS, 3, 4, 64, dtype=torch.bfloat16)
    assert_telling(grouped_linear(x, weight, 4))
    assert_same_bits(grouped_linear(x, packed, 4), grouped_linear(x, weight, 4))  # 24 rows: not whole groups
    assert_same_bits(linear(x[:, 0], packed.rows(32, 96)), linear(x[:, 0], weight.rows(32, 96)))
    for start, stop in ((8, 32), (0, 40), (-32, 96), (32, 128)):
        with pytest.raises(ValueError, match=r"st(art|op) is"):
            packed.rows(start, stop)


@pytest.mark.parametrize("form", FORMATS)
def test_experts_keep_their_bits(form: WeightFormat, equal_sets: tuple[str, ...]) -> None:
    def matrices(n: int, k: int, seed: int) -> tuple[LinearWeight, ...]:
        return tuple(random_weight(form, n, k, seed + e, exponent=-4) for e in range(3))

    bank = ExpertWeights(matrices(96, 64, 0), matrices(96, 64, 3), matrices(64, 96, 6))
    packed = pack_experts(bank)
    x = hostile(Hostile.NORMAL, 20, 64, dtype=torch.bfloat16)
    ids = torch.arange(40, dtype=torch.int32).view(20, 2) % 5 - 1
    ids[ids > 2] = 0
    expected = experts(x, ids, None, bank, 10.0, quantize_input=True)
    assert_telling(expected[ids >= 0])
    for name in equal_sets:
        with instructions(name):
            for count in (1, 2):
                with threads(count):
                    assert_same_bits(experts(x, ids, None, packed, 10.0, quantize_input=True), expected)
                    assert_same_bits(experts(x, ids, None, bank, 10.0, quantize_input=True), expected)


def test_weights_are_packed_side_by_side() -> None:
    weights = [every_byte(form, 64, 96) for form in FORMATS]
    packed = pack_all([*weights, pack(weights[0])])
    for weight, got in zip([*weights, weights[0]], packed, strict=True):
        assert_same_bits(got.dequantize(), weight.dequantize())
        assert got.data.data_ptr() % 64 == 0
    assert pack_all([]) == []


def test_what_does_not_fit_is_refused() -> None:
    weight = random_weight(WeightFormat.MXFP4, 32, 64)
    groups, width = packed_shape(WeightFormat.MXFP4, 32, 64)
    short = torch.zeros(groups * width - 1, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"data has .* bytes; a packed MXFP4"):
        packed_from(short, WeightFormat.MXFP4, 32, 64)
    with pytest.raises(ValueError, match=r"out has \d+ bytes; the packed weight has \d+"):
        pack(weight, short)
    with pytest.raises(TypeError, match="weight is"):
        pack(weight.data)  # type: ignore[arg-type]


def test_memory_for_packed_weights_is_a_row_of_bytes() -> None:
    weight = random_weight(WeightFormat.MXFP4, 32, 64)
    groups, width = packed_shape(WeightFormat.MXFP4, 32, 64)
    room = torch.zeros(2 * groups * width, dtype=torch.uint8)

    def packed(data: Any) -> LinearWeight:
        return packed_from(data, WeightFormat.MXFP4, 32, 64)

    for name, run in (("out", lambda out: pack(weight, out)), ("data", packed)):
        for wrong in ([1], "x", room.numpy()):
            with pytest.raises(TypeError, match=rf"(?s)^{name} is .*; it must be of type Tensor$"):
                run(wrong)
        with pytest.raises(TypeError, match=rf"^{name} has dtype torch.float32; allowed: torch.uint8$"):
            run(room.float())
        with pytest.raises(ValueError, match=rf"^{name} has shape \[\d+, \d+\]; expected \[any\]$"):
            run(room.view(2, -1))
        with pytest.raises(ValueError, match=rf"^{name} has stride 2; it must be contiguous$"):
            run(room[::2])
        with pytest.raises(
            ValueError, match=rf"^{name} has layout torch.sparse_coo; allowed: torch.strided$"
        ):
            run(room.to_sparse())
    with pytest.raises(TypeError, match=r"^data is None; it must be of type Tensor$"):
        packed(None)
    with pytest.raises(ValueError, match=r"^out is on device meta; the operation runs on cpu$"):
        pack(weight, room.to("meta"))
    with pytest.raises(KernelUnavailableError, match=r"linear\.pack has no meta kernel"):
        pack(LinearWeight.dense(torch.zeros(4, 8, device="meta")))


def test_only_weights_are_packed_and_only_packed_ones_unpacked() -> None:
    weight = random_weight(WeightFormat.FLOAT32, 4, 8)
    with pytest.raises(TypeError, match=r"(?s)^weights is LinearWeight.*; it must be of type Sequence$"):
        pack_all(weight)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^weights\[1\] is 1; it must be of type LinearWeight$"):
        pack_all([weight, 1])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"^bank is 1; it must be of type ExpertWeights$"):
        pack_experts(1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^weight is FLOAT32, as stored; it must be packed$"):
        unpack(weight)
    with pytest.raises(TypeError, match=r"^weight is 1; it must be of type LinearWeight$"):
        unpack(1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("form", "n", "k", "message"),
    [
        (WeightFormat.FP8, 32, 33, "columns of an FP8 weight is 33"),
        (WeightFormat.FP8, 33, 32, "rows of an FP8 weight is 33"),
        (WeightFormat.MXFP4, 33, 33, "columns of an MXFP4 weight is 33"),
        (WeightFormat.FLOAT32, -1, 3, "n is -1"),
        (WeightFormat.BFLOAT16, 3, 2**41, "k is"),
    ],
)
def test_a_shape_that_no_stored_matrix_has_is_refused(
    form: WeightFormat, n: int, k: int, message: str
) -> None:
    data = torch.zeros(1 << 16, dtype=torch.uint8)
    with pytest.raises(ValueError, match=message):
        packed_from(data, form, n, k)


def test_native_code_checks_a_packed_matrix_itself() -> None:
    """What Python has built without :func:`packed_from`."""
    data = torch.zeros(3, 32 * 16 * 2 + 64, dtype=torch.uint8)
    for form, shape in ((WeightFormat.FP8, (33, 33)), (WeightFormat.MXFP4, (33, 33))):
        weight = LinearWeight(form, data[:, : packed_shape(form, 32, 64)[1]].contiguous(), None, shape)
        with pytest.raises(ValueError, match="whole scale groups"):
            linear(torch.ones(1, 33), weight)


@pytest.mark.parametrize("form", list(WeightFormat))
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("start", "stop"), [(-32, 64), (0, 128), (64, 32), (-64, -32), (96, 96)])
def test_rows_outside_the_matrix_are_refused(form: WeightFormat, packed: bool, start: int, stop: int) -> None:
    weight = random_weight(form, 64, 64)
    with pytest.raises(ValueError, match="allowed"):
        (pack(weight) if packed else weight).rows(start, stop)
