"""Products with weights in their stored form: golden values, the reference on hostile values, independence of rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from di_kernels import instruction_sets
from di_kernels.ops.linear import LinearWeight, WeightFormat, grouped_linear, linear
from di_kernels.packing import pack
from di_kernels.reference import formats as reference_formats
from di_kernels.reference import linear as reference
from di_kernels.testing import (
    Hostile,
    assert_same_bits,
    assert_same_values,
    device_backends,
    hostile,
    instructions,
    misaligned,
    random_weight,
    threads,
    with_gaps,
    with_row_gaps,
)
from torch import Tensor

FORMATS = list(WeightFormat)
KINDS = [kind for kind in Hostile if kind.finite and kind is not Hostile.EXTREMES]
# Products of the extremes overflow float32; what is left then depends on the order of the sum.


def assert_close_to_exact(y: Tensor, x: Tensor, weight: Tensor, *, places: int = 24) -> None:
    """``y`` is ``x . weight^T`` up to the error bound of a float32 sum of its length and one rounding of the result.

    Blocks of 32 products, then the sum of the blocks: no term passes more than 33 + k/32 additions, each wrong by at
    most 2^-24 of a partial sum, and no partial sum exceeds the sum of the magnitudes. Beside that, each sum of a
    block may lose a subnormal in each step, before it is scaled by at most 2^3.
    """
    exact = x.double() @ weight.double().T
    magnitude = x.double().abs() @ weight.double().abs().T
    terms = x.shape[-1] / 32 + 34
    lost = 2.0**3 * x.shape[-1] * 2.0**-126
    bound = magnitude * terms * 2.0**-24 + exact.abs() * 2.0**-places + lost
    assert (y.double() - exact).abs().le(bound).all()


def without_subnormals(x: Tensor) -> Tensor:
    """Inputs as the products of bfloat16 see them: the instruction takes subnormals for zero."""
    return torch.where(x.abs() < 2.0**-126, torch.zeros_like(x), x)


@pytest.mark.parametrize(
    ("name", "weight"), [("fp8", LinearWeight.fp8), ("fp4", LinearWeight.mxfp4)], ids=["fp8", "mxfp4"]
)
def test_golden_products(golden, name: str, weight) -> None:
    matrix = weight(golden(f"gemm.w_{name}"), golden(f"gemm.w_{name}_scale"))
    x = golden("gemm.a.bf16")
    assert_same_bits(linear(x, matrix, quantize_input=True), golden(f"gemm.{name}.out.bf16"))
    wide = linear(x, matrix, quantize_input=True, out_dtype=torch.float32)
    torch.testing.assert_close(wide.double(), golden(f"gemm.{name}.exact_f64"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", device_backends("linear"))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("form", FORMATS)
def test_matches_reference(form: WeightFormat, dtype: torch.dtype, kind: Hostile, device: str) -> None:
    x = hostile(kind, 5, 96, dtype=dtype)
    weight = random_weight(form, 64, 96)
    moved = LinearWeight(
        form, weight.data.to(device), None if weight.scale is None else weight.scale.to(device)
    )
    matrix = reference.dequantize(weight)
    for quantize in (False, True):
        seen = reference_formats.round_trip(x, reference_formats.EntryFormat.FP8) if quantize else x
        if form is not WeightFormat.FLOAT32 and (quantize or dtype is torch.bfloat16):
            seen = without_subnormals(seen)
        for layout in (x, with_gaps(x), with_row_gaps(x)):
            y = linear(layout.to(device), moved, quantize_input=quantize, out_dtype=torch.float32)
            assert_close_to_exact(y.cpu(), seen, matrix)
        assert_same_bits(linear(x, weight, quantize_input=quantize), y.cpu().to(dtype))
        narrow = linear(x, weight, quantize_input=quantize, out_dtype=torch.bfloat16)
        assert_close_to_exact(narrow, seen, matrix, places=8)


def every_code(form: WeightFormat) -> tuple[LinearWeight, Tensor]:
    """A matrix ``[256, 32]`` with every code in every column, NaN codes as zeros, and its values by the format spec."""
    codes = (torch.arange(256)[:, None] + torch.arange(32)) % 256
    if form is WeightFormat.FP8:
        codes = torch.where(codes % 128 == 127, 0, codes).to(torch.uint8)
        weight = LinearWeight.fp8(codes, torch.full((8, 1), 127, dtype=torch.uint8))
        return weight, codes.view(torch.float8_e4m3fn).float()
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    nibbles = (codes % 16).to(torch.uint8)
    weight = LinearWeight.mxfp4(
        nibbles[:, ::2] | nibbles[:, 1::2] << 4, torch.full((256, 1), 127, dtype=torch.uint8)
    )
    return weight, torch.cat([values, -values])[nibbles.long()]


@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("form", [WeightFormat.FP8, WeightFormat.MXFP4])
def test_every_code_has_its_value(form: WeightFormat, dtype: torch.dtype, quantize: bool) -> None:
    """In every column, as stored and packed, on every instruction set, for every number of rows."""
    weight, values = every_code(form)
    one_hot = torch.eye(32, dtype=dtype)
    for name in instruction_sets():
        for matrix in (weight, pack(weight)):
            with instructions(name):
                for rows in (1, 2, 3, 8, 16, 32):
                    for start in range(0, 32 - rows + 1, rows):
                        x = one_hot[start : start + rows]
                        y = linear(x, matrix, quantize_input=quantize, out_dtype=torch.float32)
                        assert torch.equal(y, values.T[start : start + rows])


@pytest.mark.parametrize("form", [WeightFormat.FP8, WeightFormat.MXFP4])
def test_every_scale_has_its_value(form: WeightFormat) -> None:
    """2^-127 is zero to the products of bfloat16, as every subnormal is."""
    scale = torch.arange(256, dtype=torch.uint8)[:, None]
    data = torch.full((256, 16), 0x22, dtype=torch.uint8)  # ones
    weight = LinearWeight.mxfp4(data, scale)
    if form is WeightFormat.FP8:
        weight = LinearWeight.fp8(torch.full((256 * 32, 32), 0x38, dtype=torch.uint8), scale)
    expected = weight.dequantize()[:, :1].T
    powers = 2.0 ** (torch.arange(255, dtype=torch.float64) - 127)
    assert torch.equal(expected[0, :: weight.shape[0] // 256][:255].double(), powers)
    x = torch.eye(32)[:1].repeat(20, 1)
    for name in instruction_sets():
        for matrix in (weight, pack(weight)):
            for dtype in (torch.bfloat16, torch.float32):
                with instructions(name):
                    for rows in (1, 2, 3, 20):
                        y = linear(x[:rows].to(dtype), matrix, out_dtype=torch.float32)
                        seen = without_subnormals(expected) if dtype is torch.bfloat16 else expected
                        assert_same_values(y, seen.expand(rows, -1))


@pytest.mark.parametrize("k", [1, 2, 15, 63, 64, 65, 127, 300])
@pytest.mark.parametrize("n", [1, 2, 3, 16, 17, 33])
def test_odd_sizes_of_plain_weights(n: int, k: int) -> None:
    weight = random_weight(WeightFormat.FLOAT32, n, k)
    for rows in (1, 2, 3):
        x = hostile(Hostile.OUTLIERS, rows, k)
        assert_close_to_exact(linear(x, weight), x, weight.data)


@pytest.mark.parametrize(("rows", "n", "k"), [(0, 32, 64), (3, 0, 64), (3, 32, 0), (0, 0, 0)])
@pytest.mark.parametrize("form", FORMATS)
def test_empty_products(form: WeightFormat, rows: int, n: int, k: int) -> None:
    y = linear(torch.ones(rows, k), random_weight(form, n, k), quantize_input=form is WeightFormat.FP8)
    assert_same_bits(y, torch.zeros(rows, n))


@pytest.mark.parametrize("form", FORMATS)
def test_a_row_does_not_depend_on_rows_neighbours_or_threads(form: WeightFormat) -> None:
    weight = random_weight(form, 96, 160)
    x = hostile(Hostile.OUTLIERS, 300, 160, dtype=torch.bfloat16)
    quantize = form in (WeightFormat.FP8, WeightFormat.MXFP4)

    def run(rows: Tensor) -> Tensor:
        return linear(rows, weight, quantize_input=quantize, out_dtype=torch.float32)

    with threads(1):
        together = run(x)
    with threads(2):
        assert_same_bits(run(x), together)
        for start, stop in ((0, 1), (1, 3), (100, 107), (255, 257), (299, 300)):
            assert_same_bits(run(x[start:stop]), together[start:stop])


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_row_touches_no_other(form: WeightFormat, bad: float) -> None:
    weight = random_weight(form, 32, 64)
    x = hostile(Hostile.NORMAL, 4, 64, dtype=torch.bfloat16)
    clean = linear(x, weight, quantize_input=True)
    x[2, 40] = bad
    got = linear(x, weight, quantize_input=True)
    assert got[2].isnan().all()
    keep = torch.tensor([0, 1, 3])
    assert_same_bits(got[keep], clean[keep])


@pytest.mark.parametrize("form", FORMATS)
def test_weights_are_used_where_they_lie(form: WeightFormat) -> None:
    weight = random_weight(form, 64, 96)
    scale = None if weight.scale is None else misaligned(weight.scale)
    moved = LinearWeight(form, misaligned(weight.data), scale)
    x = hostile(Hostile.NORMAL, 3, 96, dtype=torch.bfloat16)
    assert_same_bits(linear(x, moved), linear(x, weight))
    assert_same_bits(linear(x, weight.rows(32, 64)), linear(x, weight)[:, 32:])
    gaps = LinearWeight(form, with_row_gaps(weight.data), None if scale is None else with_row_gaps(scale))
    assert_same_bits(linear(x, gaps), linear(x, weight))
    assert_same_bits(moved.data.clone(), weight.data)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("form", FORMATS)
def test_groups_equal_separate_products(form: WeightFormat, dtype: torch.dtype) -> None:
    weight = random_weight(form, 96, 64)
    x = hostile(Hostile.OUTLIERS, 5, 3, 64, dtype=dtype)
    expected = [linear(x[:, g], weight.rows(32 * g, 32 * g + 32)) for g in range(3)]
    for layout in (x, with_gaps(x), x.transpose(0, 1).contiguous().transpose(0, 1)):
        assert_same_bits(grouped_linear(layout, weight, 3), torch.cat(expected, dim=1))
    exact = reference.grouped_linear(x, weight, 3)
    tolerance = {torch.bfloat16: 2.0**-7, torch.float32: 1e-4}[dtype]
    torch.testing.assert_close(grouped_linear(x, weight, 3), exact, rtol=tolerance, atol=0.02)


def test_groups_need_not_end_at_scale_blocks() -> None:
    weight = random_weight(WeightFormat.FP8, 32, 64)
    x = hostile(Hostile.NORMAL, 2, 4, 64, dtype=torch.bfloat16)
    whole = torch.stack([linear(x[:, g], weight) for g in range(4)], dim=1)
    expected = torch.cat([whole[:, g, 8 * g : 8 * g + 8] for g in range(4)], dim=1)
    assert_same_bits(grouped_linear(x, weight, 4), expected)


@pytest.mark.parametrize("size", [1, 5, 15, 16, 17, 31, 32, 33, 48])
def test_groups_begin_and_end_anywhere(size: int) -> None:
    weight = random_weight(WeightFormat.BFLOAT16, 3 * size, 64)
    x = hostile(Hostile.NORMAL, 2, 3, 64, dtype=torch.bfloat16)
    parts = [linear(x[:, g], weight.rows(size * g, size * (g + 1))) for g in range(3)]
    for count in (1, 2):
        with threads(count):
            assert_same_bits(grouped_linear(x, weight, 3), torch.cat(parts, dim=1))


def test_bad_arguments_are_refused() -> None:
    weight = random_weight(WeightFormat.FP8, 32, 64)
    with pytest.raises(ValueError, match="x has shape"):
        linear(torch.zeros(2, 63), weight)
    with pytest.raises(TypeError, match="float64"):
        linear(torch.zeros(2, 64, dtype=torch.float64), weight)
    with pytest.raises(TypeError, match="out_dtype"):
        linear(torch.zeros(2, 64), weight, out_dtype=torch.float16)
    with pytest.raises(ValueError, match="multiple of 32"):
        linear(torch.zeros(2, 33), random_weight(WeightFormat.FLOAT32, 2, 33), quantize_input=True)
    with pytest.raises(ValueError, match="multiple of 5"):
        grouped_linear(torch.zeros(2, 5, 64), weight, 5)
    with pytest.raises(ValueError, match="scale has shape"):
        LinearWeight.fp8(torch.zeros(32, 64, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.uint8))


BYTES, SCALES, NUMBERS = torch.zeros(32, 64).byte(), torch.zeros(1, 2).byte(), torch.zeros(32, 64)


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (ValueError, r"^scale is None; a weight of format FP8 needs its scales", (WeightFormat.FP8, BYTES)),
        (ValueError, r"^scale is None; a weight of format MXFP4 needs", (WeightFormat.MXFP4, BYTES)),
        (
            ValueError,
            r"^scale is .*; a weight of format FLOAT32 has None",
            (WeightFormat.FLOAT32, NUMBERS, SCALES),
        ),
        (
            ValueError,
            r"^scale is .*; a packed weight of .* FP8 has",
            (WeightFormat.FP8, BYTES, SCALES, (32, 64)),
        ),
        (TypeError, r"^data has dtype torch.float32", (WeightFormat.FP8, NUMBERS, SCALES)),
        (TypeError, r"^data has dtype torch.uint8; allowed: torch.bfloat16", (WeightFormat.BFLOAT16, BYTES)),
        (TypeError, r"^data has dtype torch.float32", (WeightFormat.FLOAT32, NUMBERS, None, (32, 64))),
        (TypeError, r"^scale has dtype torch.float32", (WeightFormat.FP8, BYTES, SCALES.float())),
        (
            ValueError,
            r"^scale has shape \[1, 1\]; expected \[1, 2\]",
            (WeightFormat.FP8, BYTES, SCALES[:, :1]),
        ),
        (ValueError, r"^columns of an MXFP4 weight is 48", (WeightFormat.MXFP4, BYTES[:, :24], SCALES)),
        (ValueError, r"^data has layout torch.sparse_coo", (WeightFormat.FLOAT32, NUMBERS.to_sparse())),
        (ValueError, r"^scale has layout torch.sparse_coo", (WeightFormat.FP8, BYTES, SCALES.to_sparse())),
        (ValueError, r"^packed_shape is \(\); it must be two integers", (WeightFormat.FP8, BYTES, None, ())),
        (ValueError, r"^packed_shape is \(1, 2, 3\); it", (WeightFormat.FP8, BYTES, None, (1, 2, 3))),
        (ValueError, r"^packed_shape\[0\] is -48; allowed: 0", (WeightFormat.FP8, BYTES, None, (-48, 64))),
        (TypeError, r"^packed_shape\[1\] is 6.5; it must be", (WeightFormat.FP8, BYTES, None, (32, 6.5))),
    ],
)
def test_a_weight_that_no_format_has_is_refused(error, message: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(error, match=r"(?s)" + message):
        LinearWeight(*arguments)


def test_the_kernel_refuses_gaps_between_columns() -> None:
    x = torch.zeros(1, 64)
    with pytest.raises(ValueError, match="contiguous in its last dimension"):
        linear(x, LinearWeight.dense(with_gaps(torch.zeros(3, 64))))
