"""Hyper-connections: worked examples, golden values, the reference, independence of rows."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from di_kernels import instruction_sets
from di_kernels.ops.formats import EntryFormat, round_trip
from di_kernels.ops.hyper import (
    HyperConstants,
    HyperEntryWeights,
    HyperMixes,
    hyper_coefficients,
    hyper_enter,
    hyper_mixes,
    hyper_post,
    hyper_post_combined,
    hyper_pre,
    stream_mean,
)
from di_kernels.ops.moe import combine
from di_kernels.ops.norm import rms_norm
from di_kernels.reference import hyper as reference
from di_kernels.testing import (
    Hostile,
    assert_same_bits,
    assert_same_values,
    device_backends,
    hostile,
    instructions,
    misaligned,
    threads,
    with_gaps,
)
from torch import Tensor

CONSTANTS = HyperConstants(eps=1e-20, hc_eps=1e-6, sinkhorn_iters=20)
SINKHORN_INPUT = torch.tensor([[3, -3, -3, -3], [-3, 3, -3, -3], [0, 1, 2, -1], [-3, -3, -3, 3]]).float()
SINKHORN_OUTPUT = {
    1: """.915119 .001994 .003779 .002391 .002269 .804113 .003779 .002391
          .080341 .191898 .988661 .031138 .002269 .001994 .003779 .964080""",
    2: """.936408 .001891 .005262 .002535 .002639 .866297 .005980 .002881
          .058747 .130016 .983758 .023596 .002205 .001796 .004998 .970987""",
    20: """.975804 .001590 .016594 .003107 .003638 .963838 .024946 .004671
           .018658 .033323 .945434 .008813 .001899 .001248 .013025 .983408""",
}


def numbers(text: str) -> Tensor:
    return torch.tensor([float(word) for word in text.split()])


def parameters(m: int, dim: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    fn = torch.randn(m * (m + 2), m * dim, generator=generator) / (m * dim) ** 0.5
    return fn, torch.randn(m * (m + 2), generator=generator), torch.tensor([0.5, 0.25, 1.0])


@pytest.mark.parametrize("iterations", [1, 2, 20])
def test_worked_example_of_sinkhorn(iterations: int) -> None:
    constants = HyperConstants(1e-20, 1e-6, iterations)
    z = torch.cat([torch.zeros(8), SINKHORN_INPUT.flatten()])[None]
    mixes = hyper_coefficients(z, torch.zeros(24), torch.ones(3), constants, 4)
    expected = numbers(SINKHORN_OUTPUT[iterations])
    torch.testing.assert_close(mixes.comb.flatten(), expected, rtol=0, atol=6e-7)
    torch.testing.assert_close(mixes.comb.sum(dim=1), torch.ones(1, 4), rtol=0, atol=3e-6)


def test_worked_example_of_a_sub_layer() -> None:
    stream = torch.tensor([[[1, -2], [0.5, 0.25], [3, 1], [-1, 2]]], dtype=torch.bfloat16)
    k, c = torch.arange(24)[:, None], torch.arange(8)
    fn = ((8 * k + c) % 7 - 3).float() / 8
    base = torch.cat([torch.tensor([3.0, -3, -3, -3]), torch.zeros(4), (6 * torch.eye(4) - 3).flatten()])
    mixes = hyper_mixes(stream, fn, base, torch.tensor([0.5, 0.25, 1.0]), CONSTANTS)
    torch.testing.assert_close(mixes.pre[0], numbers(".945973 .064381 .059265 .032233"), rtol=0, atol=1e-6)
    torch.testing.assert_close(mixes.post[0], numbers(".929027 .941233 1.124377 .965693"), rtol=0, atol=1e-6)
    comb = numbers(
        """.990623 .002267 .000745 .000881 .000516 .995005 .000811 .001904
        .005397 .001661 .995296 .002546 .003464 .001066 .003147 .994668"""
    )
    torch.testing.assert_close(mixes.comb.flatten(), comb, rtol=0, atol=1e-6)

    y = torch.tensor([[0.75, -1.5]], dtype=torch.bfloat16)
    new = hyper_post(stream, y, mixes)
    rows = "1.703125 -3.359375 1.2109375 -1.1640625 3.828125 -.6875 -.26171875 .54296875"
    assert_same_bits(new.flatten(), numbers(rows).to(torch.bfloat16))
    assert_same_bits(hyper_pre(new, mixes.pre), torch.tensor([[1.90625, -3.28125]], dtype=torch.bfloat16))


def test_golden_coefficients(golden) -> None:
    mixes = hyper_coefficients(golden("hc.mixes"), golden("hc.base"), golden("hc.scale"), CONSTANTS, 4)
    for name in ("pre", "post", "comb"):
        torch.testing.assert_close(getattr(mixes, name), golden(f"hc.{name}"), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("device", device_backends("hyper"))
@pytest.mark.parametrize(
    "kind", [Hostile.NORMAL, Hostile.ZEROS, Hostile.HUGE, Hostile.OUTLIERS, Hostile.TIES]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("m", [1, 2, 4])
def test_mixes_match_reference(m: int, dtype: torch.dtype, kind: Hostile, device: str) -> None:
    stream = hostile(kind, 5, m, 48, dtype=dtype)
    fn, base, scale = parameters(m, 48)
    # Columns of fn meet a trunk normalised to a root mean square of one: coefficients differ by float32 sums only.
    expected = reference.hyper_mixes(stream, fn, base, scale, CONSTANTS)
    for layout in (stream, with_gaps(stream)):
        arguments = [tensor.to(device) for tensor in (layout, fn, base, scale)]
        for got, wanted in zip(hyper_mixes(*arguments, CONSTANTS), expected, strict=True):
            torch.testing.assert_close(got.cpu(), wanted, rtol=1e-5, atol=1e-5)


def test_parameters_are_used_where_they_lie() -> None:
    stream = hostile(Hostile.NORMAL, 2, 4, 48)
    fn, base, scale = parameters(4, 48)
    expected = hyper_mixes(stream, fn, base, scale, CONSTANTS)
    got = hyper_mixes(stream, misaligned(fn), misaligned(base), misaligned(scale), CONSTANTS)
    for one, other in zip(got, expected, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("device", device_backends("hyper"))
@pytest.mark.parametrize("kind", list(Hostile))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_mixing_equals_the_reference(dtype: torch.dtype, kind: Hostile, device: str) -> None:
    stream, y = hostile(kind, 5, 4, 33, dtype=dtype), hostile(kind, 5, 33, dtype=dtype, seed=1)
    mixes = HyperMixes(*(torch.rand(5, *shape) for shape in ((4,), (4,), (4, 4))))
    moved = HyperMixes(*(part.to(device) for part in mixes))
    for layout in (stream, with_gaps(stream), stream.transpose(0, 1).contiguous().transpose(0, 1)):
        there = layout.to(device)
        assert_same_values(hyper_pre(there, moved.pre).cpu(), reference.hyper_pre(stream, mixes.pre))
        new = hyper_post(there, y.to(device), moved).cpu()
        assert_same_values(new, reference.hyper_post(stream, y, mixes))
        assert_same_values(stream_mean(there).cpu(), reference.stream_mean(stream))


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("dim", [0, 1, 7])
def test_small_tensors(rows: int, dim: int) -> None:
    stream = torch.ones(rows, 2, dim)
    mixes = hyper_mixes(stream, torch.ones(8, 2 * dim), torch.zeros(8), torch.ones(3), CONSTANTS)
    assert [part.shape for part in mixes] == [(rows, 2), (rows, 2), (rows, 2, 2)]
    assert hyper_post(stream, torch.ones(rows, dim), mixes).shape == stream.shape
    assert_same_bits(stream_mean(stream), torch.ones(rows, dim))


def test_an_all_zero_trunk_gives_the_coefficients_of_the_base() -> None:
    fn, base, scale = parameters(4, 8)
    mixes = hyper_mixes(torch.zeros(1, 4, 8), fn, base, scale, CONSTANTS)
    expected = hyper_coefficients(torch.zeros(1, 24), base, scale, CONSTANTS, 4)
    for got, wanted in zip(mixes, expected, strict=True):
        assert_same_bits(got, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_do_not_depend_on_each_other_or_on_threads(dtype: torch.dtype) -> None:
    stream, y = (
        hostile(Hostile.OUTLIERS, 300, 4, 40, dtype=dtype),
        hostile(Hostile.NORMAL, 300, 40, dtype=dtype),
    )
    fn, base, scale = parameters(4, 40)

    def run(rows: slice) -> tuple[Tensor, ...]:
        mixes = hyper_mixes(stream[rows], fn, base, scale, CONSTANTS)
        outputs = (hyper_pre(stream[rows], mixes.pre), hyper_post(stream[rows], y[rows], mixes))
        return (*mixes, *outputs, stream_mean(stream[rows]))

    with threads(1):
        together = run(slice(None))
    with threads(2):
        for rows in (slice(None), slice(0, 1), slice(255, 258), slice(299, 300)):
            for got, expected in zip(run(rows), together, strict=True):
                assert_same_bits(got, expected[rows])


def test_a_nan_row_touches_no_other() -> None:
    stream = hostile(Hostile.NAN, 4, 4, 16).reshape(4, 64)
    stream[1::2] = hostile(Hostile.NORMAL, 2, 64)
    stream = stream.reshape(4, 4, 16)
    fn, base, scale = parameters(4, 16)
    mixes = hyper_mixes(stream, fn, base, scale, CONSTANTS)
    clean = hyper_mixes(stream[1::2], fn, base, scale, CONSTANTS)
    for got, expected in zip(mixes, clean, strict=True):
        assert got[::2].isnan().all()
        assert_same_bits(got[1::2], expected)


@pytest.mark.parametrize("isa", instruction_sets())
def test_nan_bits_of_a_row_are_its_own(isa: str) -> None:
    """Added to another NaN, that of infinity times zero: which one stays must not depend on the neighbours."""
    generator = torch.Generator().manual_seed(7)
    stream = hostile(Hostile.NORMAL, 13, 4, 300)
    specials = torch.tensor([torch.inf, -torch.inf, torch.nan, -torch.nan, 0.0])
    where = torch.rand(stream.shape, generator=generator) < 0.1
    stream = torch.where(where, specials[torch.randint(5, stream.shape, generator=generator)], stream)
    fn, base, scale = parameters(4, 300)
    where = torch.rand(fn.shape, generator=generator) < 0.1
    fn = torch.where(where, specials[torch.randint(5, fn.shape, generator=generator)], fn)
    with instructions(isa):
        together = hyper_mixes(stream, fn, base, scale, CONSTANTS)
        for row in range(len(stream)):
            alone = hyper_mixes(stream[row : row + 1], fn, base, scale, CONSTANTS)
            for got, expected in zip(alone, together, strict=True):
                assert torch.equal(got.view(torch.int32), expected[row : row + 1].view(torch.int32))


def entry(m: int, dim: int) -> HyperEntryWeights:
    return HyperEntryWeights(*parameters(m, dim), hostile(Hostile.NORMAL, dim, dtype=torch.bfloat16, seed=3))


@pytest.mark.parametrize("device", device_backends("hyper"))
@pytest.mark.parametrize("rows", [0, 1, 5, 17])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("m", "dim"), [(4, 32), (4, 192), (2, 32), (1, 64), (4, 33)])
def test_entering_is_mixing_collapsing_and_normalising(
    m: int, dim: int, dtype: torch.dtype, rows: int, device: str
) -> None:
    stream = hostile(Hostile.OUTLIERS, rows, m, dim, dtype=dtype).to(device)
    weights, pre = entry(m, dim), torch.rand(rows, m).to(device)
    weights = HyperEntryWeights(*(getattr(weights, f.name).to(device) for f in dataclasses.fields(weights)))
    expected = hyper_mixes(stream, weights.fn, weights.base, weights.scale, CONSTANTS)
    x = rms_norm(hyper_pre(stream, pre), weights.norm, CONSTANTS.eps)
    for count in (1, 2, 3):
        with threads(count):
            mixes, got, quantized = hyper_enter(stream, pre, weights, CONSTANTS, quantize=dim % 32 == 0)
        for part, wanted in zip(mixes, expected, strict=True):
            assert_same_bits(part, wanted)
        assert_same_bits(got, x)
        if quantized is not None:
            assert_same_bits(quantized, round_trip(x, EntryFormat.FP8))
    assert hyper_enter(stream, pre, weights, CONSTANTS)[2] is None


@pytest.mark.parametrize("device", device_backends("hyper"))
@pytest.mark.parametrize("kind", list(Hostile))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("slots", [0, 1, 6])
def test_the_post_mix_of_a_combination(slots: int, dtype: torch.dtype, kind: Hostile, device: str) -> None:
    stream, shared = hostile(kind, 5, 4, 33, dtype=dtype), hostile(kind, 5, 33, dtype=dtype, seed=1)
    routed = hostile(kind, 5, slots, 33, dtype=dtype, seed=2)
    mixes = HyperMixes(*(torch.rand(5, *shape) for shape in ((4,), (4,), (4, 4))))
    expected = reference.hyper_post_combined(stream, shared, routed, mixes)
    moved = HyperMixes(*(part.to(device) for part in mixes))
    for layout in (routed, with_gaps(routed)):
        arguments = [tensor.to(device) for tensor in (stream, shared, layout)]
        assert_same_values(hyper_post_combined(*arguments, moved).cpu(), expected)
        y = combine(*arguments[1:])
        assert_same_values(hyper_post(arguments[0], y, moved).cpu(), expected)


@pytest.mark.parametrize("kind", [Hostile.NORMAL, Hostile.SUBNORMALS, Hostile.HUGE, Hostile.NAN])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("m", "dim"), [(4, 96), (4, 17), (3, 65), (5, 16)])
def test_same_bits_on_every_instruction_set(m: int, dim: int, dtype: torch.dtype, kind: Hostile) -> None:
    stream, y = hostile(kind, 3, m, dim, dtype=dtype), hostile(kind, 3, dim, dtype=dtype, seed=1)
    weights, pre = entry(m, dim), torch.rand(3, m)

    def run() -> tuple[Tensor, ...]:
        mixes, x, quantized = hyper_enter(stream, pre, weights, CONSTANTS, quantize=dim % 32 == 0)
        new = hyper_post(stream, y, mixes)
        combined = hyper_post_combined(stream, y, stream, mixes)
        return (*mixes, x, x if quantized is None else quantized, new, combined, stream_mean(stream))

    expected = run()
    for name in instruction_sets():
        with instructions(name):
            for got, wanted in zip(run(), expected, strict=True):
                assert_same_values(got, wanted)


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ((math.nan, 1e-6, 20), "eps is nan; allowed: 0.0 to 1.0"),
        ((1e-20, -1.0, 20), "hc_eps is -1.0; allowed: 0.0 to 1.0"),
        ((1e-20, 1e-6, 0), "sinkhorn_iters is 0; allowed: 1 to 10000"),
        ((1e-20, 1e-6, 2**31), "sinkhorn_iters is 2147483648; allowed: 1 to 10000"),
    ],
)
def test_constants_are_checked(constants: tuple[float, float, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HyperConstants(*constants)
    with pytest.raises(TypeError, match=r"sinkhorn_iters is 2.5; it must be of type int"):
        HyperConstants(1e-20, 1e-6, 2.5)  # type: ignore[arg-type]


def test_bad_arguments_are_refused() -> None:
    fn, base, scale = parameters(4, 8)
    stream = torch.zeros(1, 4, 8)
    mixes = hyper_mixes(stream, fn, base, scale, CONSTANTS)
    with pytest.raises(ValueError, match="fn has shape"):
        hyper_mixes(stream, fn[:, 1:], base, scale, CONSTANTS)
    with pytest.raises(TypeError, match="base has dtype"):
        hyper_mixes(stream, fn, base.double(), scale, CONSTANTS)
    weights = entry(4, 8)
    with pytest.raises(ValueError, match="the last dimension of stream is 8"):
        hyper_enter(stream, mixes.pre, weights, CONSTANTS, quantize=True)
    with pytest.raises(ValueError, match=r"weights.norm has shape \[7\]"):
        hyper_enter(stream, mixes.pre, dataclasses.replace(weights, norm=weights.norm[1:]), CONSTANTS)
    with pytest.raises(ValueError, match="routed has shape"):
        hyper_post_combined(stream, torch.zeros(1, 8), torch.zeros(2, 6, 8), mixes)
    with pytest.raises(ValueError, match="z has shape"):
        hyper_coefficients(torch.zeros(1, 23), base, scale, CONSTANTS, 4)
    with pytest.raises(ValueError, match="pre has shape"):
        hyper_pre(stream, torch.zeros(1, 3))
    with pytest.raises(TypeError, match="y has dtype"):
        hyper_post(stream, torch.zeros(1, 8, dtype=torch.bfloat16), mixes)
    with pytest.raises(ValueError, match=r"comb has shape \[1, 3, 4\]; expected \[1, 4, 4\]"):
        hyper_post(stream, torch.zeros(1, 8), HyperMixes(mixes.pre, mixes.post, mixes.comb[:, :3]))
