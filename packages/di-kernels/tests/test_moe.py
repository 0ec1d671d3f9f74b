"""Routing, experts and combination: worked examples, golden values, the reference, independence of pairs."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from di_kernels.ops.linear import LinearWeight, WeightFormat, linear
from di_kernels.ops.moe import ExpertWeights, combine, experts, route
from di_kernels.plan import Projection, memory_of
from di_kernels.reference import moe as reference
from di_kernels.testing import (
    Hostile,
    assert_same_bits,
    assert_same_values,
    device_backends,
    hostile,
    misaligned,
    random_weight,
    threads,
    with_gaps,
)
from torch import Tensor

DIM, INTER, COUNT, LIMIT = 64, 96, 5, 1.5


def bank_of(form: WeightFormat, count: int = COUNT, seed: int = 0) -> ExpertWeights:
    """Random matrices whose products with normal inputs are of order one."""
    exponent = -6 if form in (WeightFormat.FP8, WeightFormat.MXFP4) else -3

    def matrices(which: int, n: int, k: int) -> tuple[LinearWeight, ...]:
        seeds = range(100 * seed + count * which, 100 * seed + count * (which + 1))
        return tuple(random_weight(form, n, k, number, exponent=exponent) for number in seeds)

    return ExpertWeights(w1=matrices(0, INTER, DIM), w3=matrices(1, INTER, DIM), w2=matrices(2, DIM, INTER))


def routing(rows: int, slots: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(-1, COUNT, (rows, slots), generator=generator, dtype=torch.int32)
    return ids, torch.rand(rows, slots, generator=generator)


def identity_bank() -> ExpertWeights:
    """One expert whose three projections copy 32 channels."""
    eye = (LinearWeight.dense(torch.eye(32)),)
    return ExpertWeights(eye, eye, eye)


def test_worked_example_of_routing() -> None:
    logits = torch.tensor([[2, -1, 0.5, 25, 1, 0.5]])
    ids, weights = route(logits, torch.tensor([0, 1.2, 0.4, -4, 0.1, 0.4]), 3, 1.5)
    assert ids.tolist() == [[1, 0, 2]]
    torch.testing.assert_close(weights, torch.tensor([[0.279379, 0.727974, 0.492647]]), rtol=0, atol=1e-6)


def test_golden_routing(golden) -> None:
    logits = linear(golden("gate.x"), LinearWeight.dense(golden("gate.weight")))
    image = golden("gate.image")
    bias = torch.where(image[:, None], golden("gate.bias_vl"), golden("gate.bias"))
    ids, weights = route(logits, bias, 6, 1.5)
    assert_same_bits(ids.long(), golden("gate.topk_expert"))
    torch.testing.assert_close(weights, golden("gate.topk_weight"), rtol=0, atol=1e-6)
    text = ~image
    alone = route(logits[text], golden("gate.bias"), 6, 1.5)
    assert_same_bits(alone[0], ids[text])
    assert_same_bits(alone[1], weights[text])


@pytest.mark.parametrize("device", device_backends("moe"))
@pytest.mark.parametrize("kind", [kind for kind in Hostile if kind.finite])
@pytest.mark.parametrize("top_k", [1, 6, 33])
def test_routing_matches_reference(kind: Hostile, top_k: int, device: str) -> None:
    logits = hostile(kind, 7, 33)
    for bias in (hostile(Hostile.TIES, 33) / 8, hostile(Hostile.TIES, 7, 33) / 8):
        for layout in (logits, with_gaps(logits)):
            ids, weights = route(layout.to(device), bias.to(device), top_k, 2.5)
            expected = reference.route(logits, bias, top_k, 2.5)
            assert_same_bits(ids.cpu(), expected[0])
            torch.testing.assert_close(weights.cpu(), expected[1], rtol=1e-6, atol=1e-7, equal_nan=True)


def test_equal_scores_go_to_the_lowest_expert() -> None:
    ids, weights = route(torch.full((2, 9), 0.75), torch.zeros(9), 4, 1.0)
    assert ids.tolist() == [[0, 1, 2, 3]] * 2
    assert weights.tolist() == [[0.25] * 4] * 2


@pytest.mark.parametrize("bad", [[3], [0, 8], list(range(9))])
def test_a_nan_logit_gives_valid_ids_and_nan_weights_in_its_row_only(bad: list[int]) -> None:
    logits = hostile(Hostile.NORMAL, 3, 9)
    clean = route(logits, torch.zeros(9), 4, 1.0)
    logits[1, bad] = float("nan")
    ids, weights = route(logits, torch.zeros(9), 4, 1.0)
    assert weights[1].isnan().all()
    assert len(set(ids[1].tolist())) == 4
    assert 0 <= int(ids.min()) <= int(ids.max()) < 9
    for got, expected in zip((ids, weights), clean, strict=True):
        assert_same_bits(got[::2], expected[::2])


def test_infinite_logits_do_not_crash() -> None:
    logits = torch.tensor([[float("inf"), -float("inf"), 0.0], [-float("inf")] * 3])
    ids, weights = route(logits, torch.zeros(3), 2, 1.0)
    assert ids.tolist() == [[0, 2], [0, 1]]
    assert weights[0, 0].isnan()
    assert weights[1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("gate", "up", "activation"),
    [(20, 20, 99.99546), (-20, -20, 4.1223e-7), (3, -11, -28.577224), (-0.5, 0.25, -0.0471926)],
)
def test_worked_examples_of_the_clamp(gate: float, up: float, activation: float) -> None:
    one = LinearWeight.dense(torch.tensor([[1.0, 0.0]]))
    two = LinearWeight.dense(torch.tensor([[0.0, 1.0]]))
    down = LinearWeight.dense(torch.tensor([[1.0], [2.0]]))
    bank = ExpertWeights((one,), (two,), (down,))
    ids = torch.zeros(1, 1, dtype=torch.int32)
    y = experts(torch.tensor([[gate, up]]).float(), ids, None, bank, 10.0, quantize_input=False)
    torch.testing.assert_close(y[0, 0], torch.tensor([activation, 2 * activation]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("device", device_backends("moe"))
@pytest.mark.parametrize(
    "kind", [Hostile.NORMAL, Hostile.ZEROS, Hostile.TINY, Hostile.OUTLIERS, Hostile.TIES]
)
@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("form", list(WeightFormat))
def test_experts_match_reference(
    form: WeightFormat, dtype: torch.dtype, quantize: bool, kind: Hostile, device: str
) -> None:
    bank = bank_of(form)
    x = hostile(kind, 9, DIM, dtype=dtype)
    ids, weights = routing(9, 3)
    for routed in (weights, None):
        moved = None if routed is None else routed.to(device)
        y = experts(x.to(device), ids.to(device), moved, bank, LIMIT, quantize_input=quantize).cpu()
        expected = reference.experts(x, ids, routed, bank, LIMIT, quantize)
        # A float32 sum may fall on the other side of a rounding (to bfloat16, or to E4M3: one part in sixteen of
        # one activation); nearly all elements are equal, the others within that of the largest output.
        coarse = dtype is torch.bfloat16 or quantize
        largest = expected.float().abs().max().item()
        torch.testing.assert_close(y, expected, rtol=0, atol=largest * (2.0**-6 if coarse else 1e-5))
        if dtype is torch.bfloat16:
            assert (y == expected).float().mean() > 0.9


def test_negative_ids_give_zeros() -> None:
    x = hostile(Hostile.NORMAL, 2, DIM, dtype=torch.bfloat16)
    ids = torch.tensor([[-1, 2], [-1, -5]], dtype=torch.int32)
    y = experts(x, ids, torch.ones(2, 2), bank_of(WeightFormat.MXFP4), LIMIT, quantize_input=True)
    assert_same_bits(y[ids < 0], torch.zeros(3, DIM, dtype=torch.bfloat16))
    assert y[0, 1].abs().min() > 0


@pytest.mark.parametrize("form", list(WeightFormat))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_pair_does_not_depend_on_the_others_or_on_threads(dtype: torch.dtype, form: WeightFormat) -> None:
    bank = bank_of(form)
    quantize = dtype is torch.bfloat16
    x = hostile(Hostile.OUTLIERS, 40, DIM, dtype=dtype)
    ids, weights = routing(40, 3)
    with threads(1):
        together = experts(x, ids, weights, bank, LIMIT, quantize_input=quantize)
    with threads(2):
        assert_same_bits(experts(x, ids, weights, bank, LIMIT, quantize_input=quantize), together)
        for row, slot in ((0, 0), (0, 2), (17, 1), (39, 2)):
            pair = (slice(row, row + 1), slice(slot, slot + 1))
            alone = experts(x[row : row + 1], ids[pair], weights[pair], bank, LIMIT, quantize_input=quantize)
            assert_same_bits(alone[0, 0], together[row, slot])


def test_more_rows_than_one_block() -> None:
    bank = bank_of(WeightFormat.FLOAT32, count=1)
    x = hostile(Hostile.NORMAL, 1030, DIM)
    ids = torch.zeros(1030, 1, dtype=torch.int32)
    ids[1024] = -1
    y = experts(x, ids, None, bank, LIMIT, quantize_input=False)
    for start, stop in ((1020, 1024), (1025, 1030)):
        alone = experts(x[start:stop], ids[start:stop], None, bank, LIMIT, quantize_input=False)
        assert_same_bits(y[start:stop], alone)
    assert_same_bits(y[1024], torch.zeros(1, DIM))


@pytest.mark.parametrize("kind", [Hostile.NAN, Hostile.INFINITIES])
@pytest.mark.parametrize("quantize", [False, True])
def test_a_bad_row_touches_no_other(quantize: bool, kind: Hostile) -> None:
    bank = bank_of(WeightFormat.MXFP4)
    x = hostile(kind, 6, DIM, dtype=torch.bfloat16)
    ids = torch.full((6, 1), 3, dtype=torch.int32)
    y = experts(x, ids, None, bank, LIMIT, quantize_input=quantize)
    assert y[::2].isnan().any(dim=2).all()
    assert_same_bits(y[1::2], experts(x[1::2], ids[1::2], None, bank, LIMIT, quantize_input=quantize))


def test_weights_are_bound_once_and_used_where_they_lie() -> None:
    bank = bank_of(WeightFormat.FP8)

    def moved(matrices: tuple[LinearWeight, ...]) -> tuple[LinearWeight, ...]:
        parts = [(m.data, m.scale) for m in matrices if m.scale is not None]
        return tuple(LinearWeight.fp8(misaligned(data), misaligned(scale)) for data, scale in parts)

    other = ExpertWeights(moved(bank.w1), moved(bank.w3), moved(bank.w2))
    x = hostile(Hostile.NORMAL, 4, DIM, dtype=torch.bfloat16)
    ids, weights = routing(4, 2)
    y = experts(x, ids, weights, bank, LIMIT, quantize_input=True)
    native = bank.bound["cpu"]
    assert_same_bits(experts(x, ids, weights, other, LIMIT, quantize_input=True), y)
    assert_same_bits(experts(x, ids, weights, bank, LIMIT, quantize_input=True), y)
    assert bank.bound["cpu"] is native


def run(bank: ExpertWeights) -> Tensor:
    x = hostile(Hostile.NORMAL, 4, DIM)
    return experts(x, torch.zeros(4, 1, dtype=torch.int32), None, bank, LIMIT, quantize_input=False)


def test_a_bank_with_other_weights_computes_with_them() -> None:
    bank, other = bank_of(WeightFormat.FLOAT32), bank_of(WeightFormat.FLOAT32, seed=1)
    before = run(bank)
    changed = dataclasses.replace(bank, w2=other.w2)
    expected = run(ExpertWeights(bank.w1, bank.w3, other.w2))
    assert not torch.equal(expected, before)
    assert_same_bits(run(changed), expected)
    assert_same_bits(run(bank), before)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda bank: pickle.loads(pickle.dumps(bank))], ids=str
)
def test_a_bank_that_was_used_can_be_copied(copied: Callable[[ExpertWeights], ExpertWeights]) -> None:
    bank = bank_of(WeightFormat.MXFP4)
    expected = run(bank)
    other = copied(bank)
    assert not other.bound
    assert other.w1[0].format is WeightFormat.MXFP4
    assert_same_bits(run(other), expected)
    assert_same_bits(run(bank), expected)


def test_a_bank_finds_memory_that_pickling_has_moved() -> None:
    """As torch.multiprocessing does with the tensors of what it sends."""
    bank = bank_of(WeightFormat.FLOAT32)
    expected = run(bank)
    pickle.dumps(bank)
    for weight in (*bank.w1, *bank.w3, *bank.w2):
        weight.data.share_memory_()
    assert_same_bits(run(bank), expected)


def test_a_bound_bank_keeps_the_memory_that_it_reads() -> None:
    values = np.random.default_rng(0).standard_normal((DIM, INTER)).astype(np.float32)
    alive = weakref.ref(values)
    bank = dataclasses.replace(
        bank_of(WeightFormat.FLOAT32, 1), w2=(LinearWeight.dense(torch.from_numpy(values)),)
    )
    expected = run(bank)
    bank.w2[0].data.data = torch.zeros(DIM, INTER)
    del values
    gc.collect()
    assert alive() is not None
    assert_same_bits(run(bank), expected)
    del bank
    gc.collect()
    assert alive() is None


def test_a_plan_keeps_the_memory_that_it_reads() -> None:
    values = np.zeros((4, 8), np.float32)
    alive = weakref.ref(values)
    part = Projection(LinearWeight.dense(torch.from_numpy(values)), quantize=False)
    memory = memory_of("part", part)
    part.weight.data.data = torch.zeros(4, 8)
    del values
    gc.collect()
    assert alive() is not None
    del memory
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(("rows", "slots"), [(0, 2), (2, 0), (0, 0)])
def test_no_pairs(rows: int, slots: int) -> None:
    ids = torch.zeros(rows, slots, dtype=torch.int32)
    y = experts(
        torch.ones(rows, 32), ids, torch.ones(rows, slots), identity_bank(), 1.0, quantize_input=False
    )
    assert y.shape == (rows, slots, 32)
    assert route(torch.ones(0, 4), torch.zeros(4), 2, 1.0)[0].shape == (0, 2)
    assert_same_bits(combine(torch.ones(2, 5), torch.ones(2, 0, 5)), torch.ones(2, 5))


@pytest.mark.parametrize("device", device_backends("moe"))
@pytest.mark.parametrize("kind", list(Hostile))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_combination_equals_the_reference(dtype: torch.dtype, kind: Hostile, device: str) -> None:
    shared, routed = hostile(kind, 5, 33, dtype=dtype), hostile(kind, 5, 6, 33, dtype=dtype, seed=1)
    expected = reference.combine(shared, routed)
    for layout in (routed, with_gaps(routed)):
        assert_same_values(combine(shared.to(device), layout.to(device)).cpu(), expected)
    for count in (1, 2):
        with threads(count):
            assert_same_values(combine(shared, routed), expected)
    assert_same_values(combine(shared[3:4], routed[3:4])[0], expected[3])


def test_bad_arguments_are_refused() -> None:
    bank, x = bank_of(WeightFormat.FP8), torch.zeros(2, DIM)
    ids = torch.zeros(2, 3, dtype=torch.int32)
    with pytest.raises(IndexError, match="expert id of row 1 is 5; allowed: 0 to 4"):
        experts(x, ids + torch.tensor([[0], [5]], dtype=torch.int32), None, bank, LIMIT, quantize_input=True)
    with pytest.raises(TypeError, match="ids has dtype"):
        experts(x, ids.long(), None, bank, LIMIT, quantize_input=True)
    with pytest.raises(ValueError, match="weights has shape"):
        experts(x, ids, torch.ones(2, 2), bank, LIMIT, quantize_input=True)
    with pytest.raises(ValueError, match=r"x has shape \[2, 32\]; expected \[any, 64\]"):
        experts(torch.zeros(2, 32), ids, None, bank, LIMIT, quantize_input=True)
    with pytest.raises(ValueError, match=r"w3 of an expert is \[\d+, \d+\]; expected"):
        experts(x, ids, None, ExpertWeights(bank.w1, bank.w2, bank.w2), LIMIT, quantize_input=True)
    with pytest.raises(ValueError, match="top_k is 7"):
        route(torch.zeros(1, 6), torch.zeros(6), 7, 1.0)
    with pytest.raises(ValueError, match="bias has shape"):
        route(torch.zeros(2, 6), torch.zeros(5), 2, 1.0)
    with pytest.raises(ValueError, match="routed has shape"):
        combine(torch.zeros(2, 6), torch.zeros(2, 3, 5))
