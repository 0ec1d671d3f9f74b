"""Attention over plain keys chosen by index: golden bits, the formula by hand, and columns without a key."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from di_kernels.ops.attention import PIECE, gathered_attention
from di_kernels.reference import attention as reference
from di_kernels.testing import Hostile, assert_same_bits, assert_same_values, device_backends, hostile
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytestmark = pytest.mark.parametrize("device", device_backends("attention"))

HEADS, DIM = 3, 64


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_golden_output_bit_for_bit(device: str, golden: Callable[[str], Tensor]) -> None:
    q, keys, index, sink = (golden(f"attn.{n}").to(device) for n in ("q.bf16", "kv.bf16", "idx", "sink"))
    actual = gathered_attention(q, keys, index, sink, 64**-0.5)
    assert_same_bits(actual.cpu(), golden("attn.out.bf16"))
    plain = gathered_attention(q.float(), keys.float(), index, sink, 64**-0.5)
    assert float((plain.cpu().double() - golden("attn.exact_f64")).abs().max()) < 2e-6


def test_worked_example(device: str) -> None:
    """Logits (1, 0), values (2, 4), sink 0.5 give 1.758255675 (attention specification, 10.1)."""
    keys = torch.tensor([[2.0, 1.0], [4.0, 0.0]], device=device)
    q = torch.tensor([[[0.0, 1.0]]], device=device)
    out = gathered_attention(q, keys, int32(0, 1)[None].to(device), torch.tensor([0.5], device=device), 1.0)
    assert out[0, 0, 0].item() == pytest.approx(1.758255675, abs=1e-6)


@given(window=st.integers(0, 70), entries=st.integers(0, 70), gap=st.integers(0, 70))
@settings(max_examples=40)
def test_absent_columns_count_towards_a_piece(device: str, window: int, entries: int, gap: int) -> None:
    """Leading gaps change bits only by moving keys to other pieces: a gap of whole pieces changes none."""
    keys = hostile(Hostile.OUTLIERS, 140, DIM, dtype=torch.bfloat16).to(device)
    q = hostile(Hostile.NORMAL, 1, HEADS, DIM, dtype=torch.bfloat16, seed=1).to(device)
    sink = torch.zeros(HEADS, device=device)
    columns = [*range(window), *[-1] * gap, *range(window, window + entries)]

    def attend(index: list[int]) -> Tensor:
        return gathered_attention(q, keys, int32(*index)[None].to(device), sink, 0.125)

    expected = attend(columns)
    assert_same_bits(attend([-1] * PIECE + columns), expected)
    assert_same_bits(attend(columns + [-1] * 3), expected)
    if window + gap + entries <= PIECE:
        assert_same_bits(attend([c for c in columns if c >= 0]), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_without_keys_are_zero(device: str, dtype: torch.dtype) -> None:
    keys = torch.full((3, DIM), math.nan, dtype=dtype, device=device)
    q = torch.full((2, HEADS, DIM), math.nan, dtype=dtype, device=device)
    for sink in (0.0, -math.inf, math.nan):
        sinks = torch.full((HEADS,), sink, device=device)
        for width in (0, 1, 130):
            index = torch.full((2, width), -1, dtype=torch.int32, device=device)
            assert_same_bits(gathered_attention(q, keys, index, sinks, 0.125), torch.zeros_like(q))


def test_no_rows(device: str) -> None:
    empty = torch.zeros(0, HEADS, DIM, device=device)
    index = torch.zeros(0, 5, dtype=torch.int32, device=device)
    out = gathered_attention(
        empty, torch.zeros(0, DIM, device=device), index, torch.zeros(HEADS, device=device), 1.0
    )
    assert out.shape == (0, HEADS, DIM)


@pytest.mark.parametrize("dim", [1, 15, 63, 65, 130])
def test_odd_dimensions(device: str, dim: int) -> None:
    q, keys = hostile(Hostile.NORMAL, 2, 1, dim), hostile(Hostile.NORMAL, 9, dim, seed=1)
    index = torch.arange(9, dtype=torch.int32).repeat(2, 1)
    sink = torch.zeros(1)
    actual = gathered_attention(q.to(device), keys.to(device), index.to(device), sink.to(device), 1.0).cpu()
    expected = reference.gathered_attention(q, keys, index, sink, 1.0)
    assert float((actual - expected).abs().max()) < 2e-5


def test_a_sink_takes_its_share(device: str) -> None:
    keys = torch.tensor([[1.0], [3.0]], device=device)
    q = torch.zeros(1, 3, 1, device=device)
    sinks = torch.tensor([-math.inf, math.log(2), 200.0], device=device)
    out = gathered_attention(q, keys, int32(0, 1)[None].to(device), sinks, 1.0).flatten().tolist()
    assert out[0] == 2.0
    assert out[1] == pytest.approx(1.0, abs=1e-6)
    assert out[2] == 0.0


def test_a_key_may_stand_more_than_once(device: str) -> None:
    keys = torch.tensor([[1.0], [4.0]], device=device)
    q = torch.zeros(1, 1, 1, device=device)
    out = gathered_attention(
        q, keys, int32(0, 1, 1)[None].to(device), torch.tensor([-math.inf], device=device), 1.0
    )
    assert out.item() == 3.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_nan_key_is_not_laundered(device: str, dtype: torch.dtype) -> None:
    keys = hostile(Hostile.NORMAL, 4, DIM, dtype=dtype)
    keys[2, 5] = math.nan
    q = hostile(Hostile.NORMAL, 2, HEADS, DIM, dtype=dtype)
    index, sink = torch.tensor([[0, 1, 3], [0, 2, -1]], dtype=torch.int32), torch.zeros(HEADS)
    out = gathered_attention(q.to(device), keys.to(device), index.to(device), sink.to(device), 0.125).cpu()
    assert bool(out[0].isfinite().all())
    assert bool(out[1].isnan().all())
    assert_same_values(reference.gathered_attention(q, keys, index, sink, 0.125)[1], out[1])


def test_an_index_outside_the_keys_is_refused(device: str) -> None:
    q, keys = torch.zeros(1, 1, 4, device=device), torch.zeros(3, 4, device=device)
    with pytest.raises(IndexError, match="index of row 0 is 3; allowed: 0 to 2"):
        gathered_attention(q, keys, int32(0, 3)[None].to(device), torch.zeros(1, device=device), 1.0)
