"""Draft model (DFlash / DSpark): context keys from the backbone, draft blocks, Markov head (backbone spec, 8).

The draft layers read their context from their own window rings, which the backbone's forward keeps up to date; the
keys of a draft block itself are rows of the draft step and are never stored, so drafting changes no state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from di_cache import CachePool, RingStorePlan
from di_kernels.ops.embedding import embed
from di_kernels.ops.hyper import hyper_pre
from di_kernels.ops.linear import LinearWeight, linear
from di_kernels.ops.norm import rms_norm
from torch import Tensor

from di_model.batch import Batch, WindowRows
from di_model.config import ModelConfig
from di_model.decoder import DecoderLayer, expand
from di_model.numerics import Numerics
from di_model.projection import project
from di_model.rope import RopeTables
from di_model.step import Step
from di_model.weights import DraftWeights


@dataclass(frozen=True, eq=False)
class DraftBlock:
    """Result of one draft forward.

    Attributes:
        hidden: ``[sequences, length, hidden]`` before the final norm (the confidence head reads it).
        logits: float32 ``[sequences, length, vocab]`` without the Markov term.
    """

    hidden: Tensor
    logits: Tensor


class DraftModel:
    """Draft layers over the caches of the backbone."""

    def __init__(
        self,
        config: ModelConfig,
        weights: DraftWeights,
        embedding: Tensor,
        head: LinearWeight,
        rope: RopeTables,
        numerics: Numerics,
    ) -> None:
        text = config.text
        self.text, self.weights, self.embedding, self.head, self.numerics = (
            text,
            weights,
            embedding,
            head,
            numerics,
        )
        self.layers = tuple(
            DecoderLayer(config, role, layer, rope, numerics, top_k=text.dspark_num_experts_per_tok)
            for role, layer in zip(text.draft_layers, weights.layers, strict=True)
        )

    def write_context(self, step: Step) -> Tensor:
        """Store keys of the backbone's rows in every draft layer's ring (8.2).

        Returns:
            The concatenated features ``[rows, targets*hidden]``, as they enter ``main_proj``.
        """
        features = torch.cat([step.features[i] for i in range(len(step.features))], dim=1)
        context = project(features, self.weights.main_proj, self.numerics)
        context = rms_norm(context, self.weights.main_norm, self.text.rms_norm_eps)
        for layer in self.layers:
            layer.attention.store(layer.attention.window_records(context, step.batch.positions, step), step)
        return features

    def forward(
        self, tokens: Tensor, positions: Tensor, slots: Tensor, cache: CachePool, length: int
    ) -> DraftBlock:
        """Run one draft block per sequence (8.3).

        Args:
            tokens: int32 ``[sequences]`` latest token of each, not yet processed by the backbone.
            positions: int32 ``[sequences]`` its position; the rings hold everything before it.
            slots: int32 ``[sequences]`` state slots.
            cache: pools of the backbone.
            length: tokens to draft.
        """
        batch = self._block_rows(tokens, positions, slots, length)
        step = Step(batch, cache)
        hidden = embed(batch.tokens, self.embedding, self.numerics.dtype)
        stream, pre = expand(hidden, self.text.hc_mult)
        for layer in self.layers:
            stream, pre = layer(stream, pre, step)
        hidden = hyper_pre(stream, pre)
        normed = rms_norm(hidden, self.weights.norm, self.text.rms_norm_eps)
        logits = linear(normed, self.head, out_dtype=torch.float32)
        count = tokens.shape[0]
        return DraftBlock(
            hidden.view(count, length, hidden.shape[1]), logits.view(count, length, logits.shape[1])
        )

    def markov_logits(self, logits: Tensor, previous: Tensor) -> Tensor:
        """Logits ``[sequences, vocab]`` of one block position plus the Markov term of the token before it (8.4)."""
        embedded = embed(previous, self.weights.markov_embed, self.numerics.dtype)
        return logits + linear(embedded, self.weights.markov_head, out_dtype=torch.float32)

    def confidence(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Raw confidence logit float32 ``[sequences]`` of one block position (8.4, before the sigmoid)."""
        embedded = embed(previous, self.weights.markov_embed, self.numerics.dtype)
        joined = torch.cat([hidden, embedded], dim=1)
        return linear(joined, self.weights.confidence, out_dtype=torch.float32).squeeze(1)

    def _block_rows(self, tokens: Tensor, positions: Tensor, slots: Tensor, length: int) -> Batch:
        """Rows of the draft blocks: every row sees the whole window before the block and the whole block (14.2)."""
        count = tokens.shape[0]
        sequence = torch.arange(count, dtype=torch.int32).repeat_interleave(length)
        block = tokens.new_full((count, length), self.text.dspark_noise_token_id)
        block[:, 0] = tokens
        first = positions.repeat_interleave(length)
        return Batch(
            tokens=block.view(-1),
            positions=(positions[:, None] + torch.arange(length, dtype=torch.int32)).view(-1),
            sequence=sequence,
            block_table=torch.zeros((count, 1), dtype=torch.int32),
            last_tokens=block.view(-1, 1),
            window=WindowRows(
                slot=slots.repeat_interleave(length),
                split=first,
                fresh_start=sequence * length,
                begin=(first - self.text.sliding_window).clamp(min=0),
                end=first + length,
                width=self.text.sliding_window,
            ),
            window_store=_nothing(),
            entries={},
        )


def _nothing() -> RingStorePlan:
    none = torch.empty(0, dtype=torch.int64)
    return RingStorePlan(none, none, none, cells=1)
