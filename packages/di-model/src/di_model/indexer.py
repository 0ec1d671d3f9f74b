"""Selection of the compressed entries a query attends to (attention specification, 8 and 9)."""

from __future__ import annotations

import torch
from di_kernels.ops.formats import EntryFormat, round_trip
from di_kernels.ops.indexer import IndexPages, candidate_blocks, candidate_entries, index_scores
from di_kernels.ops.linear import linear
from di_kernels.ops.rope import apply_rope
from di_kernels.ops.topk import topk_indices
from torch import Tensor

from di_model.config import ModelConfig
from di_model.numerics import Numerics
from di_model.projection import project
from di_model.step import Step
from di_model.topology import LayerRole
from di_model.weights import IndexerWeights

SCORES_PER_TILE = 1 << 22
"""Scores held at once (16 MB); rows are independent, so tiles change memory only."""


class Indexer:
    """Scores the visible entries of each row and keeps the best ``index_topk``."""

    def __init__(
        self,
        config: ModelConfig,
        role: LayerRole,
        weights: IndexerWeights,
        rope_table: Tensor,
        numerics: Numerics,
    ) -> None:
        self.text, self.role, self.weights = config.text, role, weights
        self.rope_table, self.numerics = rope_table, numerics
        self.scale = self.text.index_head_dim**-0.5 * self.text.index_n_heads**-0.5

    def __call__(self, x: Tensor, q_latent: Tensor, step: Step) -> None:
        """Put the selection of this layer, and candidate blocks if it is their source, into the step."""
        q, head_weights = self._queries(x, q_latent, step)
        visible = step.batch.entries[self.role.ratio].visible
        width = max(int(visible.max()) if visible.numel() else 0, 1)
        tile = max(1, SCORES_PER_TILE // width)
        parts = [
            self._select(
                q[i : i + tile], head_weights[i : i + tile], visible[i : i + tile], slice(i, i + tile), step
            )
            for i in range(0, max(q.shape[0], 1), tile)
        ]
        step.selected = torch.cat([selected for selected, _ in parts])
        step.observe("topk", self.role.index, step.selected)
        if self.role.is_candidate_source:
            step.candidates = torch.cat([blocks for _, blocks in parts if blocks is not None])
            step.observe("candidates", self.role.index, step.candidates)

    def _queries(self, x: Tensor, q_latent: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        shape = (x.shape[0], self.text.index_n_heads, self.text.index_head_dim)
        q = project(q_latent, self.weights.wq_b, self.numerics).view(shape)
        q = apply_rope(q, step.batch.positions, self.rope_table)
        if self.numerics is Numerics.RELEASE:
            q = round_trip(q, EntryFormat.MXFP4)
        return q, linear(x, self.weights.weights_proj) * self.scale

    def _select(
        self, q: Tensor, head_weights: Tensor, visible: Tensor, rows: slice, step: Step
    ) -> tuple[Tensor, Tensor | None]:
        """Selected entries and, at the candidate source, candidate blocks of a tile of rows."""
        source = self.role.index_k_source
        assert source is not None  # an index source has one
        pages = IndexPages(
            values=step.cache.index_values(source),
            scales=step.cache.index_scales(source),
            block_table=step.batch.block_table,
            sequence=step.batch.sequence[rows],
        )
        topk, block_size = self.text.index_topk, self.text.candidate_block_size
        if self.role.candidate_source is None or self.role.is_candidate_source:
            scores = index_scores(q, head_weights, pages, visible, None)
            blocks = None
            if self.role.is_candidate_source:
                blocks = candidate_blocks(scores, visible, block_size, self.text.candidate_topk_blocks)
            return topk_indices(scores, topk, visible), blocks
        assert step.candidates is not None  # the candidate source runs before its consumers
        entries = candidate_entries(step.candidates[rows], visible, block_size)
        scores = index_scores(q, head_weights, pages, visible, entries)
        chosen = topk_indices(scores, topk, (entries >= 0).sum(dim=1, dtype=torch.int32))
        selected = torch.gather(entries, 1, chosen.clamp(min=0).long())
        return torch.where(chosen < 0, -1, selected), None
