"""Engram sub-layer: hashed n-gram memory injected into the trunk (backbone specification, 5)."""

from __future__ import annotations

from di_kernels.ops.engram import engram_gather, engram_hash, engram_inject, engram_windows
from di_kernels.ops.linear import linear
from torch import Tensor

from di_model.config import ModelConfig
from di_model.engram_tables import EngramData
from di_model.step import Step
from di_model.weights import EngramWeights


class Engram:
    """Looks up the n-grams that end at each row and adds the gated value to every stream."""

    def __init__(self, config: ModelConfig, layer: int, weights: EngramWeights, data: EngramData) -> None:
        self.layer, self.weights, self.data = layer, weights, data
        self.constants = next(table.hash for table in data.tables if table.layer == layer)
        self.order, self.eps = config.text.engram_max_ngram_size, config.text.rms_norm_eps

    def __call__(self, stream: Tensor, step: Step) -> Tensor:
        """A new trunk like ``stream [rows, m, hidden]``."""
        windows = engram_windows(
            step.batch.last_tokens[:, : self.order].contiguous(), self.data.vocabulary, self.data.pad
        )
        ids = engram_hash(windows, self.constants)
        rows = engram_gather(ids, self.weights.table, stream.dtype)
        kv = linear(rows, self.weights.wkv)  # the rows are the FP8 operand already
        out = engram_inject(
            stream, kv, self.weights.q_weight, self.weights.k_weight, self.eps, active=windows[:, 0] >= 0
        )
        step.observe("engram_in", self.layer, stream)
        step.observe("engram_ids", self.layer, ids)
        step.observe("engram_out", self.layer, out)
        return out
