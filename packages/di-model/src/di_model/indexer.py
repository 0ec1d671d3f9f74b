"""Selection of the compressed entries a query attends to (attention specification, 8 and 9)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from di_kernels.ops.formats import EntryFormat, round_trip
from di_kernels.ops.indexer import IndexPages, candidate_blocks, candidate_entries, index_scores
from di_kernels.ops.linear import linear
from di_kernels.ops.rope import apply_rope
from di_kernels.ops.topk import topk_indices
from torch import Tensor
from torch.nn import functional

from di_model.config import ModelConfig, TextConfig
from di_model.numerics import Numerics
from di_model.projection import project
from di_model.step import Observer, Step
from di_model.topology import LayerRole
from di_model.weights import IndexerWeights

SCORES_PER_TILE = 1 << 22
"""Scores held at once (16 MB); rows are independent, so tiles change memory only."""


@dataclass(frozen=True)
class _Limits:
    """What can be selected in a step whose rows see at most ``width`` entries: no more than there is."""

    topk: int
    block_size: int
    top_blocks: int

    @classmethod
    def of(cls, text: TextConfig, width: int) -> _Limits:
        block_size = min(text.candidate_block_size, width)
        top_blocks = min(text.candidate_topk_blocks, -(-width // block_size))
        return cls(min(text.index_topk, width), block_size, top_blocks)


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
        limits = _Limits.of(self.text, width)
        tile = max(1, SCORES_PER_TILE // width)
        tiles = [slice(i, i + tile) for i in range(0, max(q.shape[0], 1), tile)]
        parts = [
            self._select(q[rows], head_weights[rows], visible[rows], rows, limits, step) for rows in tiles
        ]
        step.selected = torch.cat([selected for selected, _ in parts])
        if self.role.is_candidate_source:
            step.candidates = torch.cat([blocks for _, blocks in parts if blocks is not None])
        if step.observer is not None:
            self._show(step.observer, step)

    def _show(self, observer: Observer, step: Step) -> None:
        """Selections as wide as the configuration says, so that those of several steps have one shape."""
        assert step.selected is not None
        observer("topk", self.role.index, _filled(step.selected, self.text.index_topk))
        if self.role.is_candidate_source and step.candidates is not None:
            blocks = _filled(step.candidates, self.text.candidate_topk_blocks)
            observer("candidates", self.role.index, blocks)

    def _queries(self, x: Tensor, q_latent: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        shape = (x.shape[0], self.text.index_n_heads, self.text.index_head_dim)
        q = project(q_latent, self.weights.wq_b, self.numerics).view(shape)
        q = apply_rope(q, step.batch.positions, self.rope_table)
        if self.numerics is Numerics.RELEASE:
            q = round_trip(q, EntryFormat.MXFP4)
        return q, linear(x, self.weights.weights_proj) * self.scale

    def _select(
        self,
        q: Tensor,
        head_weights: Tensor,
        visible: Tensor,
        rows: slice,
        limits: _Limits,
        step: Step,
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
        if self.role.candidate_source is None or self.role.is_candidate_source:
            scores = index_scores(q, head_weights, pages, visible, None)
            blocks = None
            if self.role.is_candidate_source:
                blocks = candidate_blocks(scores, visible, limits.block_size, limits.top_blocks)
            return topk_indices(scores, limits.topk, visible), blocks
        assert step.candidates is not None  # the candidate source runs before its consumers
        entries = candidate_entries(step.candidates[rows], visible, limits.block_size)
        scores = index_scores(q, head_weights, pages, visible, entries)
        chosen = topk_indices(scores, limits.topk, (entries >= 0).sum(dim=1, dtype=torch.int32))
        selected = torch.gather(entries, 1, chosen.clamp(min=0).long())
        return torch.where(chosen < 0, -1, selected), None


def _filled(selection: Tensor, width: int) -> Tensor:
    """``selection [rows, n]`` with -1 behind it, up to ``width`` columns."""
    return functional.pad(selection, (0, width - selection.shape[1]), value=-1)
