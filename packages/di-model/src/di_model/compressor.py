"""Producers of compressed KV entries and of the index keys derived from them (attention specification, 7 and 8.1).

Both write what a step completes before anything of the step reads it.
"""

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
    """Main compressed KV of a KV-source layer."""

    def __init__(
        self, config: ModelConfig, role: LayerRole, weights: CompressorWeights, rope_table: Tensor
    ) -> None:
        self.role, self.weights, self.rope_table = role, weights, rope_table
        self.eps = config.text.rms_norm_eps

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Store the entries completed by rows ``x [rows, hidden]``.

        Returns:
            Their latents ``[entries, head_dim]`` before rotation, which index keys are made from.
        """
        rows, layer = step.batch.entries[self.role.ratio], self.role.index
        latent = rms_norm(self._pool(x, rows, step), self.weights.norm, self.eps)
        entry = apply_rope(latent.unsqueeze(1), rows.rope_positions, self.rope_table).squeeze(1)
        entry_format = step.cache.layout.spec.main_format
        records = encode_records(entry, entry_format)
        step.cache.entries(layer)[rows.store.block, rows.store.entry] = records
        if step.observer is not None:
            step.observer("compressed_kv", layer, decode_records(records, entry_format, latent.dtype))
        return latent

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


class IndexKeys:
    """Index keys of an index-key source, made from the latents of its KV source."""

    def __init__(
        self, config: ModelConfig, role: LayerRole, wk_weights: IndexerWeights, rope_table: Tensor
    ) -> None:
        if wk_weights.wk is None or wk_weights.k_norm is None:
            raise ValueError(f"layer {role.index} is an index-key source without wk and k_norm weights")
        self.role, self.rope_table = role, rope_table
        self.wk, self.k_norm = wk_weights.wk, wk_weights.k_norm
        self.eps = config.text.rms_norm_eps

    def __call__(self, latent: Tensor, step: Step) -> None:
        """Store keys of the step's new entries, from their latents ``[entries, head_dim]``."""
        rows, layer = step.batch.entries[self.role.ratio], self.role.index
        key = rms_norm(linear(latent, self.wk), self.k_norm, self.eps)
        key = apply_rope(key.unsqueeze(1), rows.rope_positions, self.rope_table).squeeze(1)
        values, scales = step.cache.index_values(layer), step.cache.index_scales(layer)
        at = (rows.store.block, rows.store.entry)
        if scales is None:
            values[at] = key
        else:
            entry_format = step.cache.layout.spec.index_format
            values[at], scales[at] = encode(key, entry_format)
            key = round_trip(key, entry_format) if step.observer is not None else key
        step.observe("index_k", layer, key)
