"""Attention of one layer over one sequence (attention specification, 4 to 10)."""

from __future__ import annotations

import torch
from di_kernels.ops.compress import PairRows
from di_kernels.reference.attention import gathered_attention
from di_kernels.reference.compress import compress_pairs
from di_kernels.reference.formats import round_trip
from di_kernels.reference.linear import grouped_linear, linear
from di_kernels.reference.rope import apply_rope
from torch import Tensor

from di_model.reference.indexer import select_entries
from di_model.reference.state import SequenceState, Setting
from di_model.topology import LayerRole
from di_model.trace import Recorder, Traced
from di_model.weights import AttentionWeights, CompressorWeights, IndexerWeights


def attention(
    x: Tensor,
    role: LayerRole,
    weights: AttentionWeights,
    state: SequenceState,
    setting: Setting,
    topk: Tensor | None,
    trace: Recorder,
) -> Tensor:
    """Attention sub-layer of normalised rows ``x [T, D]``: ``[T, D]``.

    Args:
        topk: int32 ``[T, index_topk]`` selection to use instead of the layer's own, or None.
    """
    table = state.rope.for_layer(role)
    q_latent = setting.norm(setting.project(x, weights.wq_a), weights.q_norm)
    keys = window_keys(x, state.positions, weights, table, setting)
    columns = window_columns(state.positions, setting.text.sliding_window)[:, : state.window_columns]
    if role.kv_source is not None:
        if weights.compressor is not None:
            compress(x, role, weights.compressor, weights.indexer, state, setting, trace)
        if weights.indexer is not None:
            select_entries(x, q_latent, role, weights.indexer, state, setting, trace)
        selected = state.selected if topk is None else topk
        assert selected is not None  # the first compressed layer is an index source
        columns = torch.cat([columns, torch.where(selected >= 0, selected + len(keys), -1)], dim=1)
        keys = torch.cat([keys, state.compressed[role.kv_source]])
    return attend(q_latent, state.positions, keys, columns, weights, table, setting)


def window_keys(
    x: Tensor, positions: Tensor, weights: AttentionWeights, table: Tensor, setting: Setting
) -> Tensor:
    """Window key (and value) of each row as the cache holds it: ``[rows, hd]`` (6)."""
    kv = setting.norm(setting.project(x, weights.wkv), weights.kv_norm)
    return round_trip(_rotate(kv, positions, table), setting.window_format)


def window_columns(positions: Tensor, window: int) -> Tensor:
    """Positions that each row sees, ascending, then -1: int32 ``[rows, window]``."""
    begin = (positions - window + 1).clamp(min=0)
    columns = begin[:, None] + torch.arange(window, dtype=torch.int32)
    return torch.where(columns <= positions[:, None], columns, -1)


def attend(
    q_latent: Tensor,
    positions: Tensor,
    keys: Tensor,
    columns: Tensor,
    weights: AttentionWeights,
    table: Tensor,
    setting: Setting,
) -> Tensor:
    """Queries from their latent ``[rows, q]``, attention over ``keys[columns]``, output projection (5, 10)."""
    rows, text = len(q_latent), setting.text
    q = setting.project(q_latent, weights.wq_b).view(rows, text.num_attention_heads, text.head_dim)
    q = apply_rope(q, positions, table, inverse=False)
    out = gathered_attention(q, keys, columns, weights.sink, text.head_dim**-0.5)
    out = apply_rope(out, positions, table, inverse=True)
    # The input of wo_a is not quantized (10.3).
    low_rank = grouped_linear(out.reshape(rows, text.o_groups, -1), weights.wo_a, text.o_groups)
    return setting.project(low_rank, weights.wo_b)


def compress(
    x: Tensor,
    role: LayerRole,
    weights: CompressorWeights,
    index: IndexerWeights | None,
    state: SequenceState,
    setting: Setting,
    trace: Recorder,
) -> None:
    """Put compressed entries of all rows, and the index keys made from them, into the state (7, 8.1).

    The one KV source among the consumer layers is the first of them, so each source reads its own hidden rows
    (12.2).
    """
    table = state.rope.for_layer(role)
    latent = setting.norm(_pool(x, weights, role.ratio), weights.norm)
    first_tokens = torch.arange(len(latent), dtype=torch.int32) * role.ratio
    entries = round_trip(_rotate(latent, first_tokens, table), setting.entry_format)
    state.compressed[role.index] = entries
    trace(Traced.COMPRESSED_KV, role.index, entries)
    if index is not None and index.wk is not None and index.k_norm is not None:
        key = setting.norm(setting.project(latent, index.wk), index.k_norm)
        keys = round_trip(_rotate(key, first_tokens, table), setting.index_format)
        state.index_keys[role.index] = keys
        trace(Traced.INDEX_K, role.index, keys)


def _pool(x: Tensor, weights: CompressorWeights, ratio: int) -> Tensor:
    """Latents of the completed entries: every row at ratio 1, softmax-pooled pairs at ratio 2."""
    if weights.wgate is None:
        return linear(x, weights.wkv, False, x.dtype)
    score = linear(x, weights.wgate, False, torch.float32)
    latent = linear(x, weights.wkv, False, torch.float32)
    fresh = torch.stack([score, latent], dim=1)
    first = torch.arange(0, len(x) // ratio * ratio, ratio, dtype=torch.int32)
    none = torch.zeros_like(first)
    ring = torch.zeros((1, 1, *fresh.shape[1:]))  # of no earlier step: the whole sequence is here
    return compress_pairs(fresh, ring, PairRows(last=first + 1, first=first, slot=none, cell=none), x.dtype)


def _rotate(x: Tensor, positions: Tensor, table: Tensor) -> Tensor:
    return apply_rope(x.unsqueeze(1), positions, table, inverse=False).squeeze(1)
