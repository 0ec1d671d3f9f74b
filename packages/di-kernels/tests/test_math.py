"""Elementary functions of the loops: accuracy, ends of the range, and the same bits on every instruction set."""

from __future__ import annotations

import math

import pytest
import torch
from di_kernels import _native, instruction_sets, set_instruction_set
from torch import Tensor


def run(name: str, x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    getattr(_native, name)(x, y)
    return y


def every_bit_pattern(step: int) -> Tensor:
    return torch.arange(-(2**31), 2**31, step, dtype=torch.int64).to(torch.int32).view(torch.float32)


def flushed(x: Tensor) -> Tensor:
    return torch.where(x.abs() < 2.0**-126, torch.zeros_like(x), x)


@pytest.mark.parametrize("name", ["exp", "log"])
def test_accuracy_over_the_whole_range(name: str) -> None:
    x = flushed(every_bit_pattern(4099))
    want = getattr(torch, name)(x.double())
    got = run(name, x).double()
    special = want.isnan() | want.isinf() | (want > torch.finfo(torch.float32).max)
    torch.testing.assert_close(got[special], want[special].float().double(), equal_nan=True, rtol=0, atol=0)
    tiny = want.abs() < 2.0**-126  # flushed
    assert (got[tiny].abs() <= 2.0**-126).all()
    ordinary = ~(special | tiny)
    assert ((got - want).abs() / (want.abs() * 2.0**-23))[ordinary].max() < 2.0


@pytest.mark.parametrize(("name", "lowest"), [("log1p", 0.0), ("sigmoid", -87.0)])
def test_accuracy_of_what_is_made_of_them(name: str, lowest: float) -> None:
    x = flushed(every_bit_pattern(4099))
    x = x[(x >= lowest) | x.isnan()]  # below, the logistic function is not a normal number
    want = getattr(torch, name)(x.double())
    got = run(name, x).double()
    special = want.isnan() | want.isinf()
    assert got[special].equal(want[special]) or got[special].isnan().equal(want[special].isnan())
    ordinary = ~special & (want.abs() >= 2.0**-126)
    assert ((got - want).abs() / (want.abs() * 2.0**-23))[ordinary].max() < 4.0


def test_the_logistic_function_ends_at_zero_and_one() -> None:
    x = torch.tensor([-math.inf, -104.0, 104.0, math.inf])
    assert run("sigmoid", x).tolist() == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("name", ["exp", "log", "log1p", "sigmoid"])
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 100_003])
def test_same_bits_on_every_instruction_set_and_length(name: str, size: int) -> None:
    x = every_bit_pattern(40_009)[:size].contiguous()
    results = []
    for isa in instruction_sets():
        set_instruction_set(isa)
        results.append(run(name, x))
    set_instruction_set(instruction_sets()[-1])
    for result in results:
        assert torch.equal(result.nan_to_num(7.0), results[0].nan_to_num(7.0))
    for i in range(min(size, 40)):
        assert torch.equal(run(name, x[i : i + 1]).nan_to_num(7.0), results[0][i : i + 1].nan_to_num(7.0))


def test_the_instruction_set_is_named_in_errors() -> None:
    with pytest.raises(ValueError, match=r"sse9.*portable"):
        set_instruction_set("sse9")
