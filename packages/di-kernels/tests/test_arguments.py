"""Every tensor argument of every operation: a wrong rank or element type is refused, never broadcast or converted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from di_kernels.ops.attention import EntryKeys, WindowKeys, gathered_attention, sparse_attention
from di_kernels.ops.compress import PairRows, compress_pairs
from di_kernels.ops.embedding import embed
from di_kernels.ops.engram import (
    EngramHash,
    EngramTable,
    engram_gather,
    engram_hash,
    engram_inject,
    engram_windows,
)
from di_kernels.ops.formats import EntryFormat, decode
from di_kernels.ops.hyper import (
    HyperConstants,
    HyperMixes,
    hyper_coefficients,
    hyper_mixes,
    hyper_post,
    hyper_pre,
    stream_mean,
)
from di_kernels.ops.indexer import IndexPages, candidate_blocks, candidate_entries, index_scores
from di_kernels.ops.linear import LinearWeight, grouped_linear, linear
from di_kernels.ops.moe import ExpertWeights, combine, experts, route
from di_kernels.ops.norm import rms_norm
from di_kernels.ops.rope import apply_rope
from di_kernels.ops.topk import topk_indices
from torch import Tensor

F32, PLAIN = torch.float32, EntryFormat.FLOAT32


def f(*shape: int) -> Tensor:
    return torch.zeros(shape)


def i(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def wide(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.int64)


def weight(n: int, k: int) -> LinearWeight:
    return LinearWeight.dense(f(n, k))


def run_experts(x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    bank = ExpertWeights((weight(4, 8),), (weight(4, 8),), (weight(8, 4),))
    return experts(x, ids, weights, bank, 10.0, quantize_input=False)


MIX = HyperConstants(1e-20, 1e-6, 2)
WINDOW = WindowKeys(f(2, 5, 8), f(3, 8), PLAIN, i(3), i(3), i(3), i(3), i(3) + 1, 4)
ENTRIES = EntryKeys(f(2, 4, 8), PLAIN, i(1, 2), i(3), i(3, 2))
CALLS: dict[str, tuple[Callable[..., object], list[Any]]] = {
    "rms_norm": (rms_norm, [f(3, 8), f(8), 1e-6]),
    "apply_rope": (apply_rope, [f(3, 2, 8), i(3), f(5, 4)]),
    "linear": (linear, [f(3, 8), weight(4, 8)]),
    "grouped_linear": (grouped_linear, [f(3, 2, 8), weight(4, 8), 2]),
    "hyper_mixes": (hyper_mixes, [f(3, 2, 4), f(8, 8), f(8), f(3), MIX]),
    "hyper_coefficients": (hyper_coefficients, [f(3, 8), f(8), f(3), MIX, 2]),
    "hyper_pre": (hyper_pre, [f(3, 2, 4), f(3, 2)]),
    "hyper_post": (hyper_post, [f(3, 2, 4), f(3, 4), HyperMixes(f(3, 2), f(3, 2), f(3, 2, 2))]),
    "stream_mean": (stream_mean, [f(3, 2, 4)]),
    "route": (route, [f(3, 4), f(4), 2, 1.5]),
    "experts": (run_experts, [f(3, 8), i(3, 2), f(3, 2)]),
    "combine": (combine, [f(3, 8), f(3, 2, 8)]),
    "embed": (embed, [i(3), f(5, 8), F32]),
    "engram_windows": (engram_windows, [i(3, 3), i(9), 2]),
    "engram_hash": (engram_hash, [wide(3, 3), EngramHash(wide(3), wide(2, 2), wide(4))]),
    "engram_gather": (engram_gather, [wide(3, 4), EngramTable(f(9, 8)), F32]),
    "engram_inject": (
        engram_inject,
        [f(3, 2, 4), f(3, 12), f(2, 4), f(2, 4), 1e-6, torch.ones(3, dtype=torch.bool)],
    ),
    "compress_pairs": (compress_pairs, [f(3, 2, 8), f(2, 3, 2, 8), PairRows(i(2), i(2), i(2), i(2)), F32]),
    "topk_indices": (topk_indices, [f(3, 8), 2, i(3)]),
    "index_scores": (
        index_scores,
        [f(3, 2, 8), f(3, 2), IndexPages(f(2, 4, 8), None, i(1, 2), i(3)), i(3), None],
    ),
    "candidate_blocks": (candidate_blocks, [f(3, 8), i(3), 2, 2]),
    "candidate_entries": (candidate_entries, [i(3, 2), i(3), 2]),
    "sparse_attention": (sparse_attention, [f(3, 2, 8), WINDOW, ENTRIES, f(2), 0.5]),
    "gathered_attention": (gathered_attention, [f(3, 2, 8), f(6, 8), i(3, 4), f(2), 0.5]),
    "decode": (decode, [i(3, 64).byte(), i(3, 2).byte(), EntryFormat.FP8]),
}
ARGUMENTS = [
    pytest.param(name, place, id=f"{name}-{place}")
    for name, (_, arguments) in CALLS.items()
    for place, argument in enumerate(arguments)
    if isinstance(argument, Tensor)
]


@pytest.mark.parametrize("name", list(CALLS))
def test_the_calls_below_are_good_ones(name: str) -> None:
    operation, arguments = CALLS[name]
    operation(*arguments)


@pytest.mark.parametrize(("name", "place"), ARGUMENTS)
def test_a_wrong_rank_or_element_type_is_refused(name: str, place: int) -> None:
    operation, arguments = CALLS[name]
    before, good, after = arguments[:place], arguments[place], arguments[place + 1 :]
    for wrong in (good[0], good[None], good.flatten()[0]):
        with pytest.raises(ValueError):
            operation(*before, wrong, *after)
    with pytest.raises(TypeError):
        operation(*before, good.double(), *after)
