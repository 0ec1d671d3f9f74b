"""A good call of every operation, for the tests that change one thing of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from di_kernels.ops.attention import EntryKeys, WindowKeys, gathered_attention, sparse_attention
from di_kernels.ops.cache import KeyPages, KeyTransform, key_records, store_keys
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
from di_kernels.ops.formats import EntryFormat, decode, decode_records, encode, encode_records, round_trip
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
from di_kernels.ops.indexer import (
    IndexPages,
    candidate_blocks,
    candidate_entries,
    index_scores,
    select_entries,
)
from di_kernels.ops.linear import LinearWeight, grouped_linear, linear
from di_kernels.ops.moe import ExpertWeights, combine, experts, route
from di_kernels.ops.norm import rms_norm, rms_norm_quantized
from di_kernels.ops.rope import apply_rope, rope_rows, rope_table
from di_kernels.ops.sampling import (
    DrawPurpose,
    all_finite,
    apply_bias,
    apply_bitmask,
    apply_penalties,
    argmax,
    choose,
    describe_tokens,
    log_softmax,
    pack_parameters,
    philox,
    sample,
)
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


def run_experts(x: Tensor, ids: Tensor, weights: Tensor, bank: ExpertWeights) -> Tensor:
    return experts(x, ids, weights, bank, 10.0, quantize_input=False)


BANK = ExpertWeights((weight(4, 8),), (weight(4, 8),), (weight(8, 4),))


MIX = HyperConstants(1e-20, 1e-6, 2)
WINDOW = WindowKeys(f(2, 5, 8), f(3, 8), PLAIN, i(3), i(3), i(3), i(3), i(3) + 1, 4)
ENTRIES = EntryKeys(f(2, 4, 8), PLAIN, i(1, 2), i(3), i(3, 2))
ROWS = torch.arange(3, dtype=torch.int32)
PACKED = pack_parameters(f(3).double(), wide(3), f(3).double() + 1, f(3).double(), wide(3))
CALLS: dict[str, tuple[Callable[..., object], list[Any]]] = {
    "rms_norm": (rms_norm, [f(3, 8), f(8), 1e-6]),
    "rms_norm_quantized": (rms_norm_quantized, [f(3, 32), f(32), 1e-6]),
    "apply_rope": (apply_rope, [f(3, 2, 8), i(3), f(5, 4)]),
    "linear": (linear, [f(3, 8), weight(4, 8)]),
    "grouped_linear": (grouped_linear, [f(3, 2, 8), weight(4, 8), 2]),
    "hyper_mixes": (hyper_mixes, [f(3, 2, 4), f(8, 8), f(8), f(3), MIX]),
    "hyper_coefficients": (hyper_coefficients, [f(3, 8), f(8), f(3), MIX, 2]),
    "hyper_pre": (hyper_pre, [f(3, 2, 4), f(3, 2)]),
    "hyper_post": (hyper_post, [f(3, 2, 4), f(3, 4), HyperMixes(f(3, 2), f(3, 2), f(3, 2, 2))]),
    "hyper_enter": (
        hyper_enter,
        [f(3, 2, 4), f(3, 2), HyperEntryWeights(f(8, 8), f(8), f(3), f(4)), MIX],
    ),
    "hyper_post_combined": (
        hyper_post_combined,
        [f(3, 2, 4), f(3, 4), f(3, 2, 4), HyperMixes(f(3, 2), f(3, 2), f(3, 2, 2))],
    ),
    "stream_mean": (stream_mean, [f(3, 2, 4)]),
    "route": (route, [f(3, 4), f(4), 2, 1.5]),
    "experts": (run_experts, [f(3, 8), i(3, 2), f(3, 2), BANK]),
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
    "select_entries": (
        select_entries,
        [f(3, 2, 8), f(3, 2), IndexPages(f(2, 4, 8), None, i(1, 2), i(3)), i(3) + 3, 2],
    ),
    "candidate_blocks": (candidate_blocks, [f(3, 8), i(3), 2, 2]),
    "candidate_entries": (candidate_entries, [i(3, 2), i(3), 2]),
    "sparse_attention": (sparse_attention, [f(3, 2, 8), WINDOW, ENTRIES, f(2), 0.5]),
    "gathered_attention": (gathered_attention, [f(3, 2, 8), f(6, 8), i(3, 4), f(2), 0.5]),
    "key_records": (key_records, [f(3, 8), i(3), KeyTransform(f(8), 1e-6, f(5, 4)), PLAIN]),
    "store_keys": (
        store_keys,
        [f(3, 8), i(3), KeyTransform(f(8), 1e-6, f(5, 4)), PLAIN, KeyPages(f(2, 4, 8)), i(3), ROWS],
    ),
    "decode": (decode, [i(3, 64).byte(), i(3, 2).byte(), EntryFormat.FP8]),
    "rope_table": (rope_table, [f(2), 3]),
    "rope_rows": (rope_rows, [f(2), i(3)]),
    "philox": (philox, [wide(3), wide(3), DrawPurpose.FRESH, 2]),
    "all_finite": (all_finite, [f(3, 8)]),
    "argmax": (argmax, [f(3, 8)]),
    "log_softmax": (log_softmax, [f(3, 8)]),
    "apply_penalties": (
        apply_penalties,
        [f(1, 8), torch.tensor([0, 1]), wide(1), i(1), f(1) + 1, f(1), f(1)],
    ),
    "apply_bias": (apply_bias, [f(1, 8), torch.tensor([0, 1]), wide(1), f(1)]),
    "sample": (
        sample,
        [f(1, 8), f(1).double(), wide(1), f(1).double() + 1, f(1).double(), wide(1), wide(1)],
    ),
    "choose": (choose, [f(3, 8), PACKED, wide(3), torch.tensor([2, 0, 1])]),
    "describe_tokens": (describe_tokens, [f(3, 8), wide(3), 2]),
    "apply_bitmask": (apply_bitmask, [f(3, 8), i(2, 1), torch.tensor([0, 2])]),
}
VECTORS: dict[str, tuple[Callable[..., object], list[Any]]] = {
    "encode": (encode, [f(3, 64), EntryFormat.FP8]),
    "round_trip": (round_trip, [f(3, 64), EntryFormat.MXFP4]),
    "encode_records": (encode_records, [f(3, 64), EntryFormat.FP4]),
    "encode_records-plain": (encode_records, [f(3, 64), PLAIN]),
    "decode_records": (decode_records, [i(3, 33).byte(), EntryFormat.FP8]),
    "decode_records-plain": (decode_records, [f(3, 64), PLAIN]),
}
"""Operations on vectors of any number of leading dimensions."""
EVERYTHING = CALLS | VECTORS
