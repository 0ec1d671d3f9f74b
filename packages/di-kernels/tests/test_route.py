"""Expert choice and combination on every instruction set; what they compute is tested in test_moe.py."""

from __future__ import annotations

import pytest
import torch
from di_kernels import instruction_sets
from di_kernels.ops.moe import combine, route
from di_kernels.reference import moe as reference
from di_kernels.testing import Hostile, assert_same_bits, assert_same_values, hostile, instructions, threads


@pytest.mark.parametrize("kind", list(Hostile))
@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (6, 6), (16, 3), (17, 2), (47, 8), (384, 6)])
def test_routes_are_the_same_on_every_instruction_set(experts: int, top_k: int, kind: Hostile) -> None:
    logits, bias = hostile(kind, 5, experts), hostile(Hostile.TIES, experts, seed=1)
    ids, weights = route(logits, bias, top_k, 1.5)
    for name in instruction_sets():
        with instructions(name), threads(2):
            got_ids, got_weights = route(logits, bias, top_k, 1.5)
        assert_same_bits(got_ids, ids)
        assert_same_values(got_weights, weights)
    alone = route(logits[3:4], bias, top_k, 1.5)
    assert_same_bits(alone[0][0], ids[3])
    assert_same_values(alone[1][0], weights[3])


def test_ranks_in_descending_order_lowest_expert_first() -> None:
    # At a logit of 100 the score is exactly 10, so that biases alone give the ranks.
    bias = torch.tensor([-10.0, 5, 7, -3, 7, -10, float("inf"), -float("inf"), 5, -11])
    ids, weights = route(torch.full((1, 10), 100.0), bias, 10, 1.0)
    assert ids.tolist() == [[6, 2, 4, 1, 8, 3, 0, 5, 9, 7]]
    assert_same_bits(weights, torch.full((1, 10), 10.0) / 100.0)


def test_zero_ranks_of_both_signs_are_equal() -> None:
    bias = torch.tensor([-1.0, -0.0, -10.0, 0.0, -10.0])
    logits = torch.tensor([[100.0, -200.0, 100.0, -200.0, 100.0]])  # scores 10 and 0
    ids, _ = route(logits, bias, 5, 1.0)
    assert ids.tolist() == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("place", [0, 3, 40])
def test_a_nan_comes_first(place: int) -> None:
    for sign in (1.0, -1.0):
        logits = torch.zeros(1, 41)
        logits[0, place] = sign * float("nan")
        bias = torch.zeros(41)
        bias[7] = float("inf")
        ids, weights = route(logits, bias, 3, 1.0)
        assert ids.tolist()[0][:2] == [place, 7]
        assert weights.isnan().all()


@pytest.mark.parametrize("experts", [24, 384])
def test_scores_of_every_size_match_the_reference(experts: int) -> None:
    logits = torch.linspace(-90, 60, 50 * experts).reshape(50, experts)
    ids, weights = route(logits, torch.zeros(experts), 8, 2.5)
    expected = reference.route(logits.double(), torch.zeros(experts), 8, 2.5)
    assert_same_bits(ids, expected[0])
    torch.testing.assert_close(weights.double(), expected[1], rtol=2e-6, atol=0)


@pytest.mark.parametrize("kind", list(Hostile))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dim", [1, 16, 33, 192])
def test_sums_are_the_same_on_every_instruction_set(dim: int, dtype: torch.dtype, kind: Hostile) -> None:
    shared, routed = hostile(kind, 3, dim, dtype=dtype), hostile(kind, 3, 6, dim, dtype=dtype, seed=1)
    expected = reference.combine(shared, routed)
    for name in instruction_sets():
        with instructions(name):
            assert_same_values(combine(shared, routed), expected)
