"""Where NaNs of several signs and payloads meet, every instruction set gives the same one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from di_kernels import instruction_sets
from di_kernels.ops.attention import EntryKeys, WindowKeys, gathered_attention, sparse_attention
from di_kernels.ops.compress import PairRows, compress_pairs
from di_kernels.ops.engram import engram_inject
from di_kernels.ops.formats import EntryFormat, encode_records
from di_kernels.ops.hyper import (
    HyperConstants,
    HyperMixes,
    hyper_coefficients,
    hyper_mixes,
    hyper_post,
    hyper_pre,
    stream_mean,
)
from di_kernels.ops.indexer import IndexPages, index_scores
from di_kernels.ops.linear import LinearWeight, linear
from di_kernels.ops.moe import ExpertWeights, combine, experts, route
from di_kernels.ops.norm import rms_norm, rms_norm_quantized
from di_kernels.ops.rope import apply_rope
from di_kernels.ops.sampling import log_softmax
from di_kernels.testing import assert_same_bits, instructions
from torch import Tensor

BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32
TYPES = (BFLOAT16, FLOAT32)
MIX = HyperConstants(1e-20, 1e-6, 3)


def nans(*shape: int, dtype: torch.dtype = FLOAT32, share: float = 0.05) -> Tensor:
    """Normal values, some of which are NaNs of any sign and payload and a few infinities."""
    generator = torch.Generator().manual_seed(sum(shape))
    values = torch.randn(shape, generator=generator)
    payload = torch.randint(1 << 16, 1 << 23, shape, generator=generator, dtype=torch.int32)
    sign = values.view(torch.int32) & -(2**31)
    kind = torch.rand(shape, generator=generator)
    values = torch.where(kind < share, (sign | 0x7F800000 | payload).view(FLOAT32), values)
    values = torch.where((kind > share) & (kind < 1.2 * share), float("inf") * values.sign(), values)
    if dtype == BFLOAT16:  # cut off: a conversion would make one NaN of them
        return (values.view(torch.int32) >> 16).to(torch.int16).view(BFLOAT16)
    return values


def int32(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def assert_one_value(run: Callable[[], Tensor | tuple[Tensor, ...]]) -> None:
    def results(name: str) -> list[Tensor]:
        with instructions(name):
            result = run()
        return [result] if isinstance(result, Tensor) else list(result)

    names = instruction_sets()
    expected = results(names[0])
    assert any(tensor.isnan().any() for tensor in expected)
    for name in names[1:]:
        for got, wanted in zip(results(name), expected, strict=True):
            assert_same_bits(got, wanted)


@pytest.mark.parametrize("dtype", TYPES)
def test_rows(dtype: torch.dtype) -> None:
    x, weight = nans(7, 224, dtype=dtype), nans(224)
    assert_one_value(lambda: rms_norm(x, weight, 1e-6))
    assert_one_value(lambda: rms_norm_quantized(x, weight, 1e-6))
    assert_one_value(lambda: linear(x, LinearWeight.dense(nans(48, 224, dtype=dtype, share=0.01))))
    assert_one_value(lambda: apply_rope(nans(5, 3, 64, dtype=dtype), int32(5), nans(1, 64)))
    assert_one_value(lambda: combine(nans(7, 96, dtype=dtype), nans(7, 3, 96, dtype=dtype)))
    assert_one_value(lambda: log_softmax(nans(9, 300)))
    assert_one_value(lambda: route(nans(9, 300), nans(300), 4, 1.5))


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("dtype", TYPES)
def test_streams(dtype: torch.dtype, m: int) -> None:
    stream, y, columns = nans(7, m, 96, dtype=dtype), nans(7, 96, dtype=dtype), (2 + m) * m
    base, scale, factor = nans(columns), nans(3), nans(7, m)
    assert_one_value(lambda: hyper_pre(stream, factor))
    assert_one_value(lambda: hyper_post(stream, y, HyperMixes(factor, factor, nans(7, m, m))))
    assert_one_value(lambda: stream_mean(stream))
    assert_one_value(lambda: hyper_coefficients(nans(7, columns), base, scale, MIX, m))
    fn = nans(columns, m * 96, share=0.01)
    assert_one_value(lambda: hyper_mixes(nans(7, m, 96, dtype=dtype, share=0.003), fn, base, scale, MIX))
    weights, active = nans(m, 96, share=0.02), torch.ones(7, dtype=torch.bool)
    kv = nans(7, (m + 1) * 96, dtype=dtype, share=0.02)
    assert_one_value(lambda: engram_inject(nans(7, m, 96, dtype=dtype), kv, weights, weights, 1e-6, active))


@pytest.mark.parametrize("quantize_input", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_experts(dtype: torch.dtype, quantize_input: bool) -> None:
    weights = (LinearWeight.dense(nans(64, 64, dtype=dtype, share=0.01)),) * 2
    bank, ids = ExpertWeights(weights, weights, weights), torch.tensor([[0, 1]] * 5, dtype=torch.int32)
    x, factors = nans(5, 64, dtype=dtype, share=0.01), nans(5, 2)
    assert_one_value(lambda: experts(x, ids, factors, bank, 10.0, quantize_input=quantize_input))


@pytest.mark.parametrize("form", list(EntryFormat))
@pytest.mark.parametrize("dtype", TYPES)
def test_attention(dtype: torch.dtype, form: EntryFormat) -> None:
    generator = torch.Generator().manual_seed(0)
    records = encode_records(nans(40, 64, share=0.01), form)
    if records.dtype == torch.uint8:
        special = torch.tensor([0x7F, 0xFF], dtype=torch.uint8)
        chosen = special[torch.randint(0, 2, records.shape, generator=generator)]
        records = torch.where(torch.rand(records.shape, generator=generator) < 0.02, chosen, records)
    zero = int32(6)
    window = WindowKeys(
        records[:16].view(2, 8, -1), records[16:24], form, zero, zero, zero, zero, zero + 6, 8
    )
    selected = torch.randint(0, 16, (6, 9), generator=generator).int()
    pages, table = records[24:].view(4, 4, -1), torch.arange(4).int()[None]
    q, sink = nans(6, 4, 64, dtype=dtype, share=0.01), torch.zeros(4)
    for entries in (None, EntryKeys(pages, form, table, zero, selected)):
        assert_one_value(partial(sparse_attention, q, window, entries, sink, 0.3))
    keys = nans(30, 64, dtype=dtype, share=0.01)
    assert_one_value(lambda: gathered_attention(q, keys, selected, sink, 0.3))


@pytest.mark.parametrize("dtype", TYPES)
def test_scores(dtype: torch.dtype) -> None:
    q, weights = nans(3, 2, 64, dtype=dtype, share=0.02), nans(3, 2, dtype=dtype, share=0.2)
    pages = IndexPages(nans(2, 8, 64, share=0.01), None, torch.tensor([[0, 1]]).int(), int32(3))
    assert_one_value(lambda: index_scores(q, weights, pages, int32(3) + 16, None))


def test_pairs() -> None:
    rows = PairRows(int32(3), torch.arange(3).int(), int32(3), int32(3))
    assert_one_value(lambda: compress_pairs(nans(3, 2, 8), nans(2, 3, 2, 8), rows, BFLOAT16))
