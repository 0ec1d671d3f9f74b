"""Which compressed entries each row attends to (attention specification, 8 and 9)."""

from __future__ import annotations

import torch
from di_kernels.ops.indexer import IndexPages
from di_kernels.reference.formats import round_trip
from di_kernels.reference.indexer import candidate_blocks, candidate_entries, index_scores
from di_kernels.reference.rope import apply_rope
from di_kernels.reference.topk import topk_indices
from torch import Tensor

from di_model.reference.state import SequenceState, Setting
from di_model.topology import LayerRole
from di_model.trace import Recorder, Traced
from di_model.weights import IndexerWeights


def select_entries(
    x: Tensor,
    q_latent: Tensor,
    role: LayerRole,
    weights: IndexerWeights,
    state: SequenceState,
    setting: Setting,
    trace: Recorder,
) -> None:
    """Put the selection of rows ``x [T, D]`` into the state, and candidate blocks if the layer is their source."""
    text = setting.text
    assert role.index_k_source is not None  # an index source has one
    keys = state.index_keys[role.index_k_source]
    visible = (state.positions + 1) // role.ratio
    q = setting.project(q_latent, weights.wq_b).view(len(x), text.index_n_heads, text.index_head_dim)
    q = round_trip(apply_rope(q, state.positions, state.rope.for_layer(role), False), setting.index_format)
    head_weights = (
        setting.project(x, weights.weights_proj) * (text.index_head_dim * text.index_n_heads) ** -0.5
    )

    if role.candidate_source is None or role.is_candidate_source:
        scores = index_scores(q, head_weights, _pages(keys, len(x)), visible, None)
        state.selected = topk_indices(scores, text.index_topk, visible)
        trace(Traced.INDEX_SCORES, role.index, scores)
    else:
        assert state.candidates is not None  # the candidate source runs before its consumers
        entries = candidate_entries(state.candidates, visible, text.candidate_block_size)
        scores = index_scores(q, head_weights, _pages(keys, len(x)), visible, entries)
        chosen = topk_indices(scores, text.index_topk, (entries >= 0).sum(dim=1, dtype=torch.int32))
        state.selected = torch.where(chosen < 0, -1, entries.gather(1, chosen.clamp(min=0).long()))
        trace(Traced.INDEX_SCORES, role.index, _by_entry(scores, entries, len(keys)))
    trace(Traced.TOPK, role.index, state.selected)
    if role.is_candidate_source:
        state.candidates = candidate_blocks(
            scores, visible, text.candidate_block_size, text.candidate_topk_blocks
        )
        trace(Traced.CANDIDATES, role.index, state.candidates)


def _by_entry(scores: Tensor, entries: Tensor, count: int) -> Tensor:
    """Scores ``[T, count]`` at the numbers of their entries, -inf elsewhere."""
    # One column more takes what belongs to no entry.
    spread = torch.full((len(scores), count + 1), -torch.inf)
    return spread.scatter(1, torch.where(entries < 0, count, entries).long(), scores)[:, :count]


def _pages(keys: Tensor, rows: int) -> IndexPages:
    """All keys as one page, which every row reads."""
    if len(keys) == 0:
        keys = keys.new_zeros((1, keys.shape[1]))
    return IndexPages(
        values=keys[None],
        scales=None,
        block_table=torch.zeros((1, 1), dtype=torch.int32),
        sequence=torch.zeros(rows, dtype=torch.int32),
    )
