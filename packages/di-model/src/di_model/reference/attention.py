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
            compress(x, role, weights.compressor, state, setting, trace)
        if weights.indexer is not None and role.is_index_k_source:
            make_index_keys(role, weights.indexer, state, setting, trace)
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
    state: SequenceState,
    setting: Setting,
    trace: Recorder,
) -> None:
    """Put compressed entries of all rows, and the latents they come from, into the state (7).

    The one KV source among the consumer layers is the first of them, so each source reads its own hidden rows
    (12.2).
    """
    state.latent = setting.norm(_pool(x, weights, role.ratio), weights.norm)
    entries = _rotate(state.latent, _first_tokens(state.latent, role), state.rope.for_layer(role))
    state.compressed[role.index] = round_trip(entries, setting.entry_format)
    trace(Traced.COMPRESSED_KV, role.index, state.compressed[role.index])


def make_index_keys(
    role: LayerRole, weights: IndexerWeights, state: SequenceState, setting: Setting, trace: Recorder
) -> None:
    """Put index keys, made from the latents of the layer's KV source, into the state (8.1)."""
    assert state.latent is not None  # the layer or one before it is a KV source
    assert weights.wk is not None  # an index-key source has both
    assert weights.k_norm is not None
    key = setting.norm(setting.project(state.latent, weights.wk), weights.k_norm)
    key = _rotate(key, _first_tokens(state.latent, role), state.rope.for_layer(role))
    state.index_keys[role.index] = round_trip(key, setting.index_format)
    trace(Traced.INDEX_K, role.index, state.index_keys[role.index])


def _first_tokens(latent: Tensor, role: LayerRole) -> Tensor:
    """Position of the first token of each entry, which it is rotated by."""
    return torch.arange(len(latent), dtype=torch.int32) * role.ratio


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
