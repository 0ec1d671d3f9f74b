"""Attention sub-layer over the caches (attention specification, 4 to 6, 10 and 14)."""

from __future__ import annotations

from di_kernels.ops.attention import EntryKeys, WindowKeys, sparse_attention
from di_kernels.ops.formats import encode_records
from di_kernels.ops.linear import grouped_linear
from di_kernels.ops.norm import rms_norm
from di_kernels.ops.rope import apply_rope
from torch import Tensor

from di_model.compressor import Compressor, IndexKeys
from di_model.config import ModelConfig
from di_model.indexer import Indexer
from di_model.numerics import Numerics
from di_model.parts import EntrySelection, RecentEntries, Selector
from di_model.projection import project
from di_model.rope import RopeTables
from di_model.step import Step
from di_model.topology import LayerRole
from di_model.weights import AttentionWeights


class Attention:
    """One layer's attention: window keys of its own, compressed entries of its KV source."""

    def __init__(
        self,
        config: ModelConfig,
        role: LayerRole,
        weights: AttentionWeights,
        rope: RopeTables,
        numerics: Numerics,
        selection: EntrySelection = EntrySelection.INDEXER,
    ) -> None:
        self.text, self.role, self.weights, self.numerics = config.text, role, weights, numerics
        self.sees_entries = selection is not EntrySelection.NONE
        self.rope_table = rope.for_layer(role)
        self.scale = self.text.head_dim**-0.5
        self.compressor = self.index_keys = None
        self.indexer: Selector | None = None
        if weights.compressor is not None:
            self.compressor = Compressor(config, role, weights.compressor, self.rope_table)
        if weights.indexer is not None and role.is_index_k_source:
            self.index_keys = IndexKeys(config, role, weights.indexer, self.rope_table)
        if weights.indexer is not None and role.is_index_source:
            self.indexer = (
                RecentEntries(role.ratio, self.text.index_topk)
                if selection is EntrySelection.RECENT
                else Indexer(config, role, weights.indexer, self.rope_table, numerics)
            )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Attend with rows ``x [rows, hidden]`` (already normalised) and store their keys: ``[rows, hidden]``."""
        q_latent = rms_norm(
            project(x, self.weights.wq_a, self.numerics), self.weights.q_norm, self.text.rms_norm_eps
        )
        fresh = self.window_records(x, step.batch.positions, step)
        entries = self._entries(x, q_latent, step)
        y = self.attend(q_latent, fresh, entries, step)
        self.store(fresh, step)
        return y

    def window_records(self, x: Tensor, positions: Tensor, step: Step) -> Tensor:
        """Cache records of the window keys of rows ``x [rows, hidden]``: ``[rows, bytes]`` (or float32 values)."""
        kv = rms_norm(
            project(x, self.weights.wkv, self.numerics), self.weights.kv_norm, self.text.rms_norm_eps
        )
        kv = apply_rope(kv.unsqueeze(1), positions, self.rope_table).squeeze(1)
        return encode_records(kv, step.cache.layout.spec.window_format)

    def attend(self, q_latent: Tensor, fresh: Tensor, entries: EntryKeys | None, step: Step) -> Tensor:
        """Queries from their latent, attention, and the grouped low-rank output projection."""
        rows, heads, groups = q_latent.shape[0], self.text.num_attention_heads, self.text.o_groups
        positions, window = step.batch.positions, step.batch.window
        q = project(q_latent, self.weights.wq_b, self.numerics).view(rows, heads, self.text.head_dim)
        q = apply_rope(q, positions, self.rope_table)
        keys = WindowKeys(
            ring=step.cache.window_ring(self.role.index),
            fresh=fresh,
            entry=step.cache.layout.spec.window_format,
            slot=window.slot,
            split=window.split,
            fresh_start=window.fresh_start,
            begin=window.begin,
            end=window.end,
            width=window.width,
        )
        out = sparse_attention(q, keys, entries, self.weights.sink, self.scale)
        out = apply_rope(out, positions, self.rope_table, inverse=True)
        low_rank = grouped_linear(
            out.view(rows, groups, heads // groups * self.text.head_dim), self.weights.wo_a, groups
        )
        return project(low_rank, self.weights.wo_b, self.numerics)

    def store(self, fresh: Tensor, step: Step) -> None:
        """Write window records of the batch's rows to the ring, after everything that reads it."""
        plan = step.batch.window_store
        step.cache.window_ring(self.role.index)[plan.slot, plan.cell] = fresh[plan.row]

    def _entries(self, x: Tensor, q_latent: Tensor, step: Step) -> EntryKeys | None:
        """Write what this layer owns of the compressed caches, select, and say which entries to attend to."""
        if self.role.kv_source is None or not self.sees_entries:
            return None
        if self.compressor is not None:
            step.latent = self.compressor(x, step)
        if self.index_keys is not None:
            assert step.latent is not None  # the layer or one before it is a KV source
            self.index_keys(step.latent, step)
        if self.indexer is not None:
            self.indexer(x, q_latent, step)
        assert step.selected is not None  # the first compressed layer is an index source
        return EntryKeys(
            pages=step.cache.entries(self.role.kv_source),
            entry=step.cache.layout.spec.main_format,
            block_table=step.batch.block_table,
            sequence=step.batch.sequence,
            selected=step.selected,
        )
