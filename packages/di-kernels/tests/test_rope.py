"""Rotary embedding: golden tables, exact agreement with the reference, the inverse, independence of rows."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from di_kernels import instruction_sets
from di_kernels.ops.rope import YarnScaling, apply_rope, rope_frequencies, rope_table
from di_kernels.reference import rope as reference
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

YARN = YarnScaling(factor=16, beta_fast=32, beta_slow=1, original_max_position_embeddings=65536)
TABLE = rope_table(rope_frequencies(16, 10000.0), 50)


def test_published_frequencies() -> None:
    got = rope_frequencies(64, 160000.0, YARN)
    torch.testing.assert_close(got[16].item(), 0.002265625, rtol=1e-6, atol=0)
    torch.testing.assert_close(got[20].item(), 2.9697778e-4, rtol=1e-6, atol=0)
    torch.testing.assert_close(got[24].item(), 1.953125e-5, rtol=1e-6, atol=0)
    torch.testing.assert_close(got[31].item(), 5.680529e-7, rtol=1e-6, atol=0)
    assert_same_bits(got[:16], rope_frequencies(64, 160000.0)[:16])


@pytest.mark.parametrize(
    ("name", "theta", "yarn"),
    [("plain", 10000.0, None), ("compressed", 160000.0, YARN)],
    ids=["plain", "yarn"],
)
def test_golden_tables(golden, name: str, theta: float, yarn: YarnScaling | None) -> None:
    positions = golden("rope.positions")
    frequencies = rope_frequencies(64, theta, yarn)
    # Entries do not depend on the length of the table, so that those of far positions need no table up to there.
    angles = (positions.to(torch.float32)[:, None] * frequencies).double()
    for part, function in (("cos", torch.cos), ("sin", torch.sin)):
        expected = golden(f"rope.{name}.{part}")
        one_ulp = torch.nextafter(expected.abs(), torch.tensor(2.0)) - expected.abs()
        assert (function(angles).float() - expected).abs().le(one_ulp).all()
    near = positions[positions < 4096]
    table = rope_table(frequencies, 4096)[near]
    assert_same_bits(table, torch.cat([torch.cos(angles), torch.sin(angles)], 1).float()[positions < 4096])


@pytest.mark.parametrize("device", device_backends("rope"))
@pytest.mark.parametrize("kind", list(Hostile))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("inverse", [False, True])
def test_equals_the_reference(inverse: bool, dtype: torch.dtype, kind: Hostile, device: str) -> None:
    x = hostile(kind, 6, 3, 24, dtype=dtype)
    positions = torch.tensor([0, 1, 49, 7, 7, 30], dtype=torch.int32)
    expected = reference.apply_rope(x, positions, TABLE, inverse)
    for layout in (x, with_gaps(x), x.transpose(0, 1).contiguous().transpose(0, 1)):
        y = apply_rope(layout.to(device), positions.to(device), TABLE.to(device), inverse=inverse)
        assert_same_values(y.cpu(), expected)


def test_position_zero_and_plain_dimensions_are_copied() -> None:
    x = hostile(Hostile.NORMAL, 2, 2, 24)
    positions = torch.tensor([0, 5], dtype=torch.int32)
    y = apply_rope(x, positions, TABLE)
    assert_same_bits(y[0], x[0])
    assert_same_bits(y[1, :, :8], x[1, :, :8])
    assert (y[1, :, 8:] != x[1, :, 8:]).any()


def test_a_quarter_turn_shows_the_pairing_and_the_direction() -> None:
    quarter = torch.tensor([[0.0, 1.0, 1.0, 0.0]])  # cosines, then sines: first pair turned by 90 degrees
    x = torch.tensor([[[9.0, 2.0, 3.0, 5.0, 7.0]]])
    positions = torch.zeros(1, dtype=torch.int32)
    assert apply_rope(x, positions, quarter).tolist() == [[[9, -3, 2, 5, 7]]]
    assert apply_rope(x, positions, quarter, inverse=True).tolist() == [[[9, 3, -2, 5, 7]]]


@pytest.mark.parametrize("shape", [(0, 2, 16), (3, 0, 16), (1, 1, 16)])
def test_small_tensors(shape: tuple[int, int, int]) -> None:
    x = torch.ones(shape)
    positions = torch.full((shape[0],), 3, dtype=torch.int32)
    assert_same_bits(apply_rope(x, positions, TABLE), reference.apply_rope(x, positions, TABLE, False))


def test_rows_do_not_depend_on_each_other_or_on_threads() -> None:
    x = hostile(Hostile.OUTLIERS, 40, 8, 64, dtype=torch.bfloat16)
    positions = torch.arange(40, dtype=torch.int32)
    with threads(1):
        together = apply_rope(x, positions, TABLE)
    with threads(2):
        assert_same_bits(apply_rope(x, positions, TABLE), together)
    assert_same_bits(apply_rope(x[9:10], positions[9:10], TABLE)[0], together[9])


@pytest.mark.parametrize("dim", [0, -2, 7, 64.0, None])
def test_the_number_of_rotary_dimensions_is_even(dim: object) -> None:
    with pytest.raises((ValueError, TypeError), match=rf"^dim is {dim}; it must be "):
        rope_frequencies(dim, 10000.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "theta", [0.0, -1.0, math.inf, -math.inf, math.nan, 1e39, 1e-45, pytest.param(10**5000, id="huge")]
)
def test_the_base_is_positive_and_finite(theta: float) -> None:
    with pytest.raises(ValueError, match=r"^theta is .*; allowed: 1.17\d*e-38 to 3.40\d*e.38$"):
        rope_frequencies(64, theta)


@pytest.mark.parametrize("theta", [1e-37, 0.5, 1, 3e38])
def test_every_allowed_base_gives_finite_frequencies(theta: float) -> None:
    assert bool(rope_frequencies(64, theta).isfinite().all())
    if theta <= 1:
        with pytest.raises(ValueError, match="with YaRN it must be above 1"):
            rope_frequencies(64, theta, YARN)
    else:
        assert bool(rope_frequencies(64, theta, YARN).isfinite().all())


@pytest.mark.parametrize("wrong", [None, "10000", True, [1.0]])
def test_what_is_no_number_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"^theta is .*; it must be a number$"):
        rope_frequencies(64, wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^factor is .*; it must be a number$"):
        dataclasses.replace(YARN, factor=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("factor", 0.5),
        ("factor", math.inf),
        ("beta_fast", 0.5),
        ("beta_slow", 0.0),
        ("beta_slow", math.nan),
        ("original_max_position_embeddings", 0),
    ],
)
def test_the_range_of_yarn_parameters(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{field} is {value}; allowed: "):
        dataclasses.replace(YARN, **{field: value})
    with pytest.raises(TypeError, match="yarn is 16; it must be of type YarnScaling"):
        rope_frequencies(64, 10000.0, 16)  # type: ignore[arg-type]


def test_the_arguments_of_a_table() -> None:
    frequencies = rope_frequencies(16, 10000.0)
    assert rope_table(frequencies, 0).shape == (0, 16)
    for wrong in (-1, 2**31 + 1, 10**5000):
        with pytest.raises(ValueError, match=r"^positions is .*; allowed: 0 to 2147483648$"):
            rope_table(frequencies, wrong)
    for kind in (None, 2.0, "3"):
        with pytest.raises(TypeError, match=r"positions is .*; it must be an integer"):
            rope_table(frequencies, kind)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"frequencies is \[1.0, nan\]; they must be finite"):
        rope_table(torch.tensor([1.0, math.nan]), 3)


def test_bad_arguments_are_refused() -> None:
    x, positions = torch.zeros(2, 1, 16), torch.tensor([0, 50], dtype=torch.int32)
    with pytest.raises(IndexError, match="position of row 1 is 50; allowed: 0 to 49"):
        apply_rope(x, positions, TABLE)
    with pytest.raises(IndexError, match="position of row 0 is -1"):
        apply_rope(x, positions - 1, TABLE)
    with pytest.raises(ValueError, match="width 8"):
        apply_rope(x[..., :8], positions, TABLE)
    with pytest.raises(TypeError, match="positions has dtype"):
        apply_rope(x, positions.long(), TABLE)
    with pytest.raises(ValueError, match="even number of columns"):
        apply_rope(x, torch.zeros(2, dtype=torch.int32), TABLE[:, :7])


@pytest.mark.parametrize("kind", [Hostile.NORMAL, Hostile.SUBNORMALS, Hostile.NAN])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dim", [2, 30, 32, 64, 70])
def test_same_bits_on_every_instruction_set(dim: int, dtype: torch.dtype, kind: Hostile) -> None:
    x, table = hostile(kind, 6, 2, 72, dtype=dtype), rope_table(rope_frequencies(dim, 10000.0), 50)
    positions = torch.tensor([0, 1, 49, 7, 7, 30], dtype=torch.int32)
    for inverse in (False, True):
        expected = reference.apply_rope(x, positions, table, inverse)
        for name in instruction_sets():
            with instructions(name):
                assert_same_values(apply_rope(x, positions, table, inverse=inverse), expected)
