"""Engram sub-layer: hashed n-gram memory injected into the trunk (backbone specification, 5)."""

from __future__ import annotations

from di_kernels.ops.engram import EngramHash, engram_gather, engram_hash, engram_inject, engram_windows
from di_kernels.ops.linear import linear
from torch import Tensor

from di_model.config import ModelConfig
from di_model.step import Step
from di_model.topology import LayerRole
from di_model.weights import EngramWeights


class Engram:
    """Looks up the n-grams that end at each row and adds the gated value to every stream."""

    def __init__(
        self,
        config: ModelConfig,
        role: LayerRole,
        weights: EngramWeights,
        constants: EngramHash,
        vocabulary: Tensor,
    ) -> None:
        self.role, self.weights, self.constants, self.vocabulary = role, weights, constants, vocabulary
        self.order, self.eps = config.text.engram_max_ngram_size, config.text.rms_norm_eps
        self.pad = int(vocabulary[config.text.engram_pad_token_id])

    def __call__(self, stream: Tensor, step: Step) -> Tensor:
        """A new trunk like ``stream [rows, m, hidden]``."""
        windows = engram_windows(
            step.batch.last_tokens[:, : self.order].contiguous(), self.vocabulary, self.pad
        )
        ids = engram_hash(windows, self.constants)
        rows = engram_gather(ids, self.weights.table, stream.dtype)
        kv = linear(rows, self.weights.wkv)  # the rows are the FP8 operand already
        out = engram_inject(
            stream, kv, self.weights.q_weight, self.weights.k_weight, self.eps, active=windows[:, 0] >= 0
        )
        step.observe("engram_in", self.role.index, stream)
        step.observe("engram_ids", self.role.index, ids)
        step.observe("engram_out", self.role.index, out)
        return out
