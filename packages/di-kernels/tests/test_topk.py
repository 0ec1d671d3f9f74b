"""Exact selection: the reference on hostile scores, the tie rule, and bits that depend on the row alone."""

from __future__ import annotations

import math

import pytest
import torch
from di_kernels import instruction_sets
from di_kernels.ops.topk import topk_indices
from di_kernels.reference import topk as reference
from di_kernels.testing import (
    AWKWARD_SIZES,
    Hostile,
    assert_same_bits,
    device_backends,
    hostile,
    instructions,
    threads,
    with_gaps,
    with_row_gaps,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytestmark = pytest.mark.parametrize("device", device_backends("topk"))


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def oracle(scores: list[float], k: int) -> list[int]:
    """The rule in one line: sort by descending score, then index; keep k; list them ascending."""
    ranked = sorted(range(len(scores)), key=lambda i: (math.inf if math.isnan(scores[i]) else -scores[i], i))
    kept = sorted(ranked[:k])
    return kept + [-1] * (k - len(kept))


@pytest.mark.parametrize("kind", list(Hostile))
@pytest.mark.parametrize("k", [1, 8, 64, 200])
def test_equals_the_reference(device: str, kind: Hostile, k: int) -> None:
    for n in AWKWARD_SIZES:
        scores = hostile(kind, 6, n, seed=n)
        lengths = int32(0, 1, n // 2, n, n + 9, -3)
        actual = topk_indices(scores.to(device), k, lengths.to(device)).cpu()
        assert_same_bits(actual, reference.topk_indices(scores, k, lengths.clamp(0)))


@given(
    scores=st.lists(
        st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, math.inf, -math.inf, math.nan, 1e-45, -3e38]),
        min_size=0,
        max_size=40,
    ),
    k=st.integers(1, 45),
)
@settings(max_examples=200)
def test_equals_a_sorted_list_with_many_ties(device: str, scores: list[float], k: int) -> None:
    row = torch.tensor([scores], dtype=torch.float32, device=device)
    assert topk_indices(row, k, int32(len(scores)).to(device))[0].tolist() == oracle(scores, k)


def test_ties_zeros_and_nan(device: str) -> None:
    scores = torch.tensor([[0.0, -0.0, math.nan, -math.inf, 0.0, -math.inf]], device=device)
    length = int32(6).to(device)
    assert topk_indices(scores, 2, length)[0].tolist() == [0, 1]
    assert topk_indices(scores, 4, length)[0].tolist() == [0, 1, 2, 4]
    assert topk_indices(scores, 5, length)[0].tolist() == [0, 1, 2, 3, 4]


def test_all_but_one_drops_only_the_lowest(device: str) -> None:
    """Field report R47: no cliff at ``k``; one entry more than ``k`` loses the smallest score and nothing else."""
    n = 513
    scores = torch.randperm(n, generator=torch.Generator().manual_seed(1)).float()[None]
    everything = list(range(n))
    lowest = int(scores.argmin())
    kept = topk_indices(scores.to(device), n - 1, int32(n).to(device))[0].tolist()
    assert kept == everything[:lowest] + everything[lowest + 1 :]
    for k in (n, n + 1):
        assert topk_indices(scores.to(device), k, int32(n).to(device))[0].tolist()[:n] == everything


def test_a_row_depends_on_itself_only(device: str) -> None:
    scores = hostile(Hostile.TIES, 9, 300).to(device)
    lengths = torch.arange(0, 297, 33, dtype=torch.int32, device=device)
    together = topk_indices(scores, 20, lengths)
    for row in range(9):
        alone = topk_indices(scores[row : row + 1], 20, lengths[row : row + 1])
        assert_same_bits(alone, together[row : row + 1])
    with threads(3):
        assert_same_bits(topk_indices(scores, 20, lengths), together)


def test_scores_behind_the_length_and_other_memory_change_nothing(device: str) -> None:
    scores = hostile(Hostile.NORMAL, 3, 50)
    lengths = int32(50, 20, 0).to(device)
    expected = topk_indices(scores.to(device), 7, lengths)
    wider = torch.cat([scores, torch.full((3, 9), math.inf)], dim=1).to(device)
    assert_same_bits(topk_indices(wider, 7, lengths), expected)
    for awkward in (with_row_gaps, with_gaps):
        assert_same_bits(topk_indices(awkward(scores.to(device)), 7, lengths), expected)


def large_rows(n: int) -> list[tuple[str, Tensor]]:
    """Rows that a sample describes well, badly, and not at all."""
    generator = torch.Generator().manual_seed(n)
    normal = torch.randn(n, generator=generator)
    alternating = torch.full((n,), -1.0)
    alternating[:: n // 512] = torch.arange(-(-n // (n // 512))).float()  # what a sample of every n/m-th sees
    late = torch.zeros(n)
    late[-300:] = normal[-300:].abs()
    few = torch.full((n,), -math.inf)
    few[torch.randperm(n, generator=generator)[:700]] = 1.0
    few[torch.randperm(n, generator=generator)[:700]] = math.nan
    return [
        ("normal", normal),
        ("ascending", torch.arange(n).float()),
        ("descending", -torch.arange(n).float()),
        ("equal", torch.zeros(n)),
        ("equal and negative", torch.full((n,), -2.5)),
        ("rectified", normal.clamp(min=0)),
        ("mostly zeros of both signs", torch.where(normal > 2.5, normal, normal.sign() * 0.0)),
        ("alternating", alternating),
        ("late", late),
        ("few numbers", few),
        ("all NaN", torch.full((n,), math.nan)),
        ("subnormals", normal * 1e-39),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "k"), [(4096, 1), (20_011, 512), (20_011, 5002), (129_280, 4096)])
def test_large_rows_equal_the_reference(device: str, n: int, k: int, dtype: torch.dtype) -> None:
    for name, row in large_rows(n):
        scores = row[None].to(dtype)
        expected = reference.topk_indices(scores, k, int32(n))
        assert torch.equal(topk_indices(scores.to(device), k, int32(n).to(device)).cpu(), expected), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_instruction_set_and_any_threads_choose_the_same(device: str, dtype: torch.dtype) -> None:
    rows = [row for _, row in large_rows(9001)] + [hostile(kind, 9001) for kind in Hostile]
    scores = torch.stack(rows).to(dtype).to(device)
    lengths = (torch.arange(len(rows), dtype=torch.int32) * 450 + 37).to(device)
    expected = reference.topk_indices(scores.cpu(), 600, lengths.cpu())
    for name in instruction_sets():
        for count in (1, 2):
            with instructions(name), threads(count):
                assert torch.equal(topk_indices(scores, 600, lengths).cpu(), expected), name


def test_wrong_arguments_are_named(device: str) -> None:
    scores = torch.zeros(2, 3, device=device)
    with pytest.raises(ValueError, match="k is 0"):
        topk_indices(scores, 0, int32(1, 1).to(device))
    with pytest.raises(ValueError, match="lengths has shape"):
        topk_indices(scores, 1, int32(1).to(device))
    with pytest.raises(TypeError, match="scores has dtype"):
        topk_indices(scores.double(), 1, int32(1, 1).to(device))
