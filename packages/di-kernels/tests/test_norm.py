"""Root-mean-square normalisation: worked example, the reference on hostile values, independence of rows."""

from __future__ import annotations

import pytest
import torch
from di_kernels import instruction_sets
from di_kernels.ops.formats import EntryFormat
from di_kernels.ops.norm import rms_norm, rms_norm_quantized
from di_kernels.reference import norm as reference
from di_kernels.reference.formats import round_trip
from di_kernels.testing import (
    AWKWARD_SIZES,
    Hostile,
    assert_same_bits,
    assert_same_values,
    device_backends,
    hostile,
    instructions,
    misaligned,
    threads,
    with_gaps,
    with_row_gaps,
)

EPS = 1e-20
SQUARABLE = [kind for kind in Hostile if kind.finite and kind not in (Hostile.EXTREMES, Hostile.SUBNORMALS)]


def test_worked_example() -> None:
    x = torch.tensor([[1.0, -2.0, 3.0, 0.5]], dtype=torch.bfloat16)
    weight = torch.tensor([1.5, 0.75, 1.25, 1.5], dtype=torch.bfloat16)
    expected = torch.tensor([[0.79296875, -0.79296875, 1.984375, 0.39648438]])
    assert_same_bits(rms_norm(x, weight, EPS), expected.to(torch.bfloat16))


@pytest.mark.parametrize("device", device_backends("norm"))
@pytest.mark.parametrize("kind", SQUARABLE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_matches_reference(dtype: torch.dtype, kind: Hostile, device: str) -> None:
    x = hostile(kind, 5, 192, dtype=dtype)
    weight = hostile(Hostile.NORMAL, 192, dtype=torch.bfloat16)
    expected = reference.rms_norm(x.double(), weight.double(), EPS)
    # One rounding of the result (half of 2^-8 or 2^-24) and a few of the statistic.
    tolerance = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-20}[dtype]
    for layout in (x, with_gaps(x), with_row_gaps(x)):
        y = rms_norm(layout.to(device), weight.to(device), EPS).cpu()
        torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=0)
    assert_same_bits(rms_norm(x, weight.float(), EPS), y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_weight_is_used_where_it_lies(dtype: torch.dtype) -> None:
    x, weight = hostile(Hostile.NORMAL, 3, 192), hostile(Hostile.NORMAL, 192, dtype=dtype, seed=1)
    assert_same_bits(rms_norm(x, misaligned(weight), EPS), rms_norm(x, weight, EPS))


@pytest.mark.parametrize("kind", [Hostile.ZEROS, Hostile.NEGATIVE_ZEROS])
def test_zero_rows_give_exact_zeros(kind: Hostile) -> None:
    x = hostile(kind, 2, 64, dtype=torch.bfloat16)
    assert_same_bits(rms_norm(x, torch.ones(64), EPS), x)


def test_squares_below_float32_count_as_zero() -> None:
    x = hostile(Hostile.SUBNORMALS, 2, 64)
    assert_same_bits(rms_norm(x, torch.ones(64), EPS), x * (1.0 / torch.sqrt(torch.tensor(EPS))))


@pytest.mark.parametrize("dim", [size for size in AWKWARD_SIZES if size])
def test_odd_lengths(dim: int) -> None:
    x = hostile(Hostile.OUTLIERS, 3, dim)
    weight = hostile(Hostile.NORMAL, dim, seed=1)
    expected = reference.rms_norm(x.double(), weight.double(), EPS)
    torch.testing.assert_close(rms_norm(x, weight, EPS).double(), expected, rtol=2.0**-20, atol=0)


@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (0, 0)])
def test_empty_tensors(shape: tuple[int, int]) -> None:
    assert rms_norm(torch.empty(shape), torch.ones(shape[1]), EPS).shape == shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_do_not_depend_on_each_other_or_on_threads(dtype: torch.dtype) -> None:
    x = hostile(Hostile.OUTLIERS, 65, 160, dtype=dtype)
    weight = hostile(Hostile.NORMAL, 160)
    with threads(1):
        together = rms_norm(x, weight, EPS)
    with threads(2):
        assert_same_bits(rms_norm(x, weight, EPS), together)
        for row in (0, 31, 64):
            assert_same_bits(rms_norm(x[row : row + 1], weight, EPS)[0], together[row])


@pytest.mark.parametrize("kind", [Hostile.NAN, Hostile.INFINITIES])
def test_a_bad_row_touches_no_other(kind: Hostile) -> None:
    x = hostile(kind, 4, 64)
    weight = torch.ones(64)
    y = rms_norm(x, weight, EPS)
    assert y[::2].isnan().any(dim=1).all()
    assert_same_bits(y[1::2], rms_norm(x[1::2], weight, EPS))


@pytest.mark.parametrize("device", device_backends("norm"))
@pytest.mark.parametrize("kind", list(Hostile))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dim", [0, 32, 192])
def test_the_second_result_is_the_round_trip_of_the_first(
    dim: int, dtype: torch.dtype, kind: Hostile, device: str
) -> None:
    x, weight = hostile(kind, 5, dim, dtype=dtype), hostile(Hostile.NORMAL, dim, seed=1)
    for layout in (x, with_gaps(x)):
        y, quantized = rms_norm_quantized(layout.to(device), weight.to(device), EPS)
        assert_same_values(y, rms_norm(x.to(device), weight.to(device), EPS))
        assert_same_values(quantized.cpu(), round_trip(y.cpu(), EntryFormat.FP8))


@pytest.mark.parametrize("kind", list(Hostile))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dim", [1, 15, 64, 96, 131])
def test_same_bits_on_every_instruction_set(dim: int, dtype: torch.dtype, kind: Hostile) -> None:
    x, weight = hostile(kind, 3, dim, dtype=dtype), hostile(Hostile.NORMAL, dim, seed=1)
    expected = rms_norm(x, weight, EPS)
    for name in instruction_sets():
        with instructions(name):
            assert_same_values(rms_norm(x, weight, EPS), expected)
            if dim % 32 == 0:
                y, quantized = rms_norm_quantized(x, weight, EPS)
        if dim % 32 == 0:
            assert_same_values(y, expected)
            assert_same_values(quantized, round_trip(expected, EntryFormat.FP8))


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="float64"):
        rms_norm(torch.zeros(2, 4, dtype=torch.float64), torch.ones(4), EPS)
    with pytest.raises(TypeError, match="weight has dtype"):
        rms_norm(torch.zeros(2, 4), torch.ones(4, dtype=torch.int32), EPS)
    with pytest.raises(ValueError, match="x has shape"):
        rms_norm(torch.zeros(2, 5), torch.ones(4), EPS)
    with pytest.raises(ValueError, match="x has shape"):
        rms_norm(torch.zeros(4), torch.ones(4), EPS)
    with pytest.raises(ValueError, match="the last dimension of x is 48"):
        rms_norm_quantized(torch.zeros(2, 48), torch.ones(48), EPS)
