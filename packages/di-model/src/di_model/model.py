"""The cached model: one step of rows of many sequences, prefill and decode alike (backbone specification, 1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from di_cache import CachePool
from di_kernels.ops.embedding import embed
from di_kernels.ops.hyper import hyper_pre
from di_kernels.ops.linear import linear
from di_kernels.ops.norm import rms_norm
from torch import Tensor

from di_model.batch import Batch
from di_model.config import ModelConfig
from di_model.decoder import DecoderLayer, expand
from di_model.draft import DraftModel
from di_model.engram import Engram
from di_model.engram_tables import EngramData
from di_model.numerics import Numerics
from di_model.parts import ALL_PARTS, Parts
from di_model.rope import RopeTables
from di_model.step import Observer, Step
from di_model.topology import LayerRole
from di_model.weights import LayerWeights, ModelWeights


@dataclass(frozen=True, eq=False)
class StepOutput:
    """Result of one step.

    Attributes:
        hidden: ``[rows, hidden]`` normalised output rows, ready for :meth:`Model.logits`.
        features: ``[rows, targets*hidden]`` draft features, or None without a draft model.
    """

    hidden: Tensor
    features: Tensor | None


class Model:
    """DeepSeek-V4.1 text model over paged caches.

    Args:
        config: the model's configuration.
        weights: its parameters in stored form.
        engram: derived hash tables, or None when the configuration has no Engram layers.
        numerics: release or float32.
        max_positions: exclusive bound of positions (context length plus drafts).
        parts: what is at work; anything but all of it is for measuring what a part carries.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        engram: EngramData | None,
        numerics: Numerics,
        max_positions: int,
        parts: Parts = ALL_PARTS,
    ) -> None:
        self.config, self.weights, self.numerics = config, weights, numerics
        self.max_positions, self.parts = max_positions, parts
        rope = RopeTables.build(config, max_positions)
        self.layers = tuple(
            self._layer(role, layer, engram, rope)
            for role, layer in zip(config.text.layers, weights.layers, strict=True)
        )
        self.draft = (
            DraftModel(config, weights.draft, weights.embed, weights.head, rope, numerics)
            if weights.draft is not None
            else None
        )

    def forward(self, batch: Batch, cache: CachePool, observer: Observer | None = None) -> StepOutput:
        """Compute the rows of a step and store their keys and state in the cache."""
        text = self.config.text
        step = Step(batch, cache, observer=observer)
        stream, pre = expand(embed(batch.tokens, self.weights.embed, self.numerics.dtype), text.hc_mult)
        for layer in self.layers:
            stream, pre = layer(stream, pre, step)
        features = self.draft.write_context(step) if self.draft is not None else None
        hidden = rms_norm(hyper_pre(stream, pre), self.weights.norm, text.rms_norm_eps)
        return StepOutput(hidden, features)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits float32 ``[rows, vocab]`` of output rows (backbone specification, 6)."""
        return linear(hidden, self.weights.head, out_dtype=torch.float32)

    def _layer(
        self, role: LayerRole, weights: LayerWeights, engram: EngramData | None, rope: RopeTables
    ) -> DecoderLayer:
        memory = None
        if weights.engram is not None and self.parts.engram:
            if engram is None:
                raise ValueError(
                    f"engram is None; layer {role.index} needs the derived hash tables (derive_engram)"
                )
            memory = Engram(self.config, role.index, weights.engram, engram)
        top_k = self.config.text.num_experts_per_tok
        return DecoderLayer(
            self.config,
            role,
            weights,
            rope,
            self.numerics,
            top_k=top_k,
            engram=memory,
            selection=self.parts.selection,
        )
