"""Selection of the compressed entries a query attends to (attention specification, 8 and 9)."""

from __future__ import annotations

from dataclasses import dataclass

from di_kernels.ops.formats import EntryFormat, round_trip
from di_kernels.ops.indexer import IndexPages, select_entries
from di_kernels.ops.linear import linear
from di_kernels.ops.rope import apply_rope
from torch import Tensor
from torch.nn import functional

from di_model.config import ModelConfig, TextConfig
from di_model.numerics import Numerics
from di_model.projection import project
from di_model.step import Observer, Step
from di_model.topology import LayerRole
from di_model.weights import IndexerWeights


@dataclass(frozen=True)
class _Limits:
    """What can be selected in a step: no more than its block table has entries."""

    topk: int
    block_size: int
    top_blocks: int

    @classmethod
    def of(cls, text: TextConfig, pages: IndexPages) -> _Limits:
        entries = max(pages.block_table.shape[1] * pages.values.shape[1], 1)
        block_size = min(text.candidate_block_size, entries)
        top_blocks = min(text.candidate_topk_blocks, -(-entries // block_size))
        return cls(min(text.index_topk, entries), block_size, top_blocks)


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
        source = self.role.index_k_source
        assert source is not None  # an index source has one
        pages = IndexPages(
            values=step.cache.index_values(source),
            scales=step.cache.index_scales(source),
            block_table=step.batch.block_table,
            sequence=step.batch.sequence,
        )
        limits = _Limits.of(self.text, pages)
        is_source = self.role.is_candidate_source
        # The candidate source runs before its consumers.
        candidates = None if self.role.candidate_source is None or is_source else step.candidates
        step.selected, blocks = select_entries(
            q,
            head_weights,
            pages,
            step.batch.entries[self.role.ratio].visible,
            limits.topk,
            candidates=candidates,
            top_blocks=limits.top_blocks if is_source else None,
            block_size=limits.block_size,
        )
        if is_source:
            step.candidates = blocks
        if step.observer is not None:
            self._show(step.observer, step.selected, blocks)

    def _show(self, observer: Observer, selected: Tensor, blocks: Tensor | None) -> None:
        """Selections as wide as the configuration says, so that those of several steps have one shape."""
        observer("topk", self.role.index, _filled(selected, self.text.index_topk))
        if blocks is not None:
            observer("candidates", self.role.index, _filled(blocks, self.text.candidate_topk_blocks))

    def _queries(self, x: Tensor, q_latent: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        shape = (x.shape[0], self.text.index_n_heads, self.text.index_head_dim)
        q = project(q_latent, self.weights.wq_b, self.numerics).view(shape)
        q = apply_rope(q, step.batch.positions, self.rope_table)
        if self.numerics is Numerics.RELEASE:
            q = round_trip(q, EntryFormat.MXFP4)
        return q, linear(x, self.weights.weights_proj) * self.scale


def _filled(selection: Tensor, width: int) -> Tensor:
    """``selection [rows, n]`` with -1 behind it, up to ``width`` columns."""
    return functional.pad(selection, (0, width - selection.shape[1]), value=-1)
