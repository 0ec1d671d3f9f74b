"""One decoder layer: Engram, attention and experts around the hyper-connected residual trunk."""

from __future__ import annotations

import torch
from di_kernels.ops.hyper import HyperConstants, HyperMixes, hyper_mixes, hyper_post, hyper_pre, stream_mean
from di_kernels.ops.norm import rms_norm
from torch import Tensor

from di_model.attention import Attention
from di_model.config import ModelConfig
from di_model.engram import Engram
from di_model.moe import MixtureOfExperts
from di_model.numerics import Numerics
from di_model.parts import EntrySelection
from di_model.rope import RopeTables
from di_model.step import Step
from di_model.topology import LayerRole
from di_model.weights import HyperWeights, LayerWeights


class DecoderLayer:
    """A backbone or draft layer. The input of a sub-layer is formed with the mix of the one before it."""

    def __init__(
        self,
        config: ModelConfig,
        role: LayerRole,
        weights: LayerWeights,
        rope: RopeTables,
        numerics: Numerics,
        *,
        top_k: int,
        engram: Engram | None = None,
        selection: EntrySelection = EntrySelection.INDEXER,
    ) -> None:
        text = config.text
        self.role, self.weights, self.engram = role, weights, engram
        self.attention = Attention(config, role, weights.attn, rope, numerics, selection)
        self.experts = MixtureOfExperts(config, role, weights.moe, top_k, numerics)
        self.eps = text.rms_norm_eps
        self.constants = HyperConstants(text.rms_norm_eps, text.hc_eps, text.hc_sinkhorn_iters)

    def __call__(self, stream: Tensor, pre: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """The trunk ``[rows, m, hidden]`` and the pre-mix ``[rows, m]`` that the next sub-layer uses."""
        layer = self.role.index
        if self.engram is not None:
            stream = self.engram(stream, step)
        if self.role.draft_feature is not None:
            step.features[self.role.draft_feature] = stream_mean(stream)
        step.observe("in_stream", layer, stream)
        step.observe("in_mix", layer, pre)

        mixes = self._mixes(stream, self.weights.hc_attn)
        x = rms_norm(hyper_pre(stream, pre), self.weights.attn_norm, self.eps)
        y = self.attention(x, step)
        step.observe("attn_in", layer, x)
        step.observe("attn_out", layer, y)
        stream, pre = hyper_post(stream, y, mixes), mixes.pre

        mixes = self._mixes(stream, self.weights.hc_ffn)
        x = rms_norm(hyper_pre(stream, pre), self.weights.ffn_norm, self.eps)
        y = self.experts(x, step)
        step.observe("ffn_in", layer, x)
        step.observe("ffn_out", layer, y)
        stream, pre = hyper_post(stream, y, mixes), mixes.pre
        step.observe("out_stream", layer, stream)
        step.observe("out_mix", layer, pre)
        return stream, pre

    def _mixes(self, stream: Tensor, weights: HyperWeights) -> HyperMixes:
        return hyper_mixes(stream, weights.fn, weights.base, weights.scale, self.constants)


def expand(hidden: Tensor, streams: int) -> tuple[Tensor, Tensor]:
    """Trunk of equal streams and the first pre-mix, which reads stream 0 alone (backbone specification, 3.1)."""
    pre = torch.zeros((hidden.shape[0], streams), dtype=torch.float32)
    pre[:, 0] = 1.0
    return hidden.unsqueeze(1).repeat(1, streams, 1), pre
