"""Producer of compressed KV entries and of the index keys derived from them (attention specification, 7 and 8.1)."""

from __future__ import annotations

import torch
from di_kernels.ops.compress import compress_pairs
from di_kernels.ops.formats import decode_records, encode, encode_records, round_trip
from di_kernels.ops.linear import linear
from di_kernels.ops.norm import rms_norm
from di_kernels.ops.rope import apply_rope
from torch import Tensor

from di_model.batch import EntryRows
from di_model.config import ModelConfig
from di_model.step import Step
from di_model.topology import LayerRole
from di_model.weights import CompressorWeights, IndexerWeights


class Compressor:
    """Writes the entries that a step completes, and their index keys, before anything reads them."""

    def __init__(
        self,
        config: ModelConfig,
        role: LayerRole,
        weights: CompressorWeights,
        index_weights: IndexerWeights | None,
        rope_table: Tensor,
    ) -> None:
        self.role, self.weights, self.rope_table = role, weights, rope_table
        self.index_weights = index_weights if role.is_index_k_source else None
        self.eps = config.text.rms_norm_eps

    def __call__(self, x: Tensor, step: Step) -> None:
        """Store the entries completed by rows ``x [rows, hidden]``."""
        rows = step.batch.entries[self.role.ratio]
        latent = rms_norm(self._pool(x, rows, step), self.weights.norm, self.eps)
        self._store_entries(latent, rows, step)
        if self.index_weights is not None:
            self._store_index_keys(latent, self.index_weights, rows, step)

    def _pool(self, x: Tensor, rows: EntryRows, step: Step) -> Tensor:
        if rows.pairs is None or rows.ring is None or self.weights.wgate is None:
            return linear(x, self.weights.wkv)
        score = linear(x, self.weights.wgate, out_dtype=torch.float32)
        latent = linear(x, self.weights.wkv, out_dtype=torch.float32)
        fresh = torch.stack([score, latent], dim=1)
        ring = step.cache.compress_ring(self.role.index)
        pooled = compress_pairs(fresh, ring, rows.pairs, x.dtype)
        ring[rows.ring.slot, rows.ring.cell] = fresh[rows.ring.row]
        return pooled

    def _store_entries(self, latent: Tensor, rows: EntryRows, step: Step) -> None:
        spec = step.cache.layout.spec
        entry = apply_rope(latent.unsqueeze(1), rows.rope_positions, self.rope_table).squeeze(1)
        records = encode_records(entry, spec.main_format)
        step.cache.entries(self.role.index)[rows.store.block, rows.store.entry] = records
        step.observe(
            "compressed_kv", self.role.index, decode_records(records, spec.main_format, latent.dtype)
        )

    def _store_index_keys(self, latent: Tensor, weights: IndexerWeights, rows: EntryRows, step: Step) -> None:
        assert weights.wk is not None  # an index-key source has both
        assert weights.k_norm is not None
        key = rms_norm(linear(latent, weights.wk), weights.k_norm, self.eps)
        key = apply_rope(key.unsqueeze(1), rows.rope_positions, self.rope_table).squeeze(1)
        layer, at = self.role.index, (rows.store.block, rows.store.entry)
        scales = step.cache.index_scales(layer)
        if scales is None:
            step.cache.index_values(layer)[at] = key
            step.observe("index_k", layer, key)
            return
        entry_format = step.cache.layout.spec.index_format
        step.cache.index_values(layer)[at], scales[at] = encode(key, entry_format)
        step.observe("index_k", layer, round_trip(key, entry_format))
