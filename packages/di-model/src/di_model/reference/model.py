"""The backbone over one sequence, reading top to bottom like the formulas (backbone specification, 1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from di_kernels.ops.hyper import HyperConstants, HyperMixes
from di_kernels.reference.embedding import embed
from di_kernels.reference.engram import engram_gather, engram_hash, engram_inject, engram_windows
from di_kernels.reference.hyper import hyper_mixes, hyper_post, hyper_pre, stream_mean
from di_kernels.reference.linear import linear
from di_kernels.reference.moe import combine, experts, route
from torch import Tensor

from di_model.config import ModelConfig
from di_model.engram_tables import EngramData
from di_model.numerics import Numerics
from di_model.projection import quantizes_input
from di_model.reference.attention import attention
from di_model.reference.draft import DraftOutput, draft_block
from di_model.reference.state import SequenceState, Setting
from di_model.trace import Recorder, Traced, ignore
from di_model.weights import HyperWeights, ModelWeights, MoeWeights


@dataclass(frozen=True, eq=False)
class ReferenceOutput:
    """Result of one forward pass.

    Attributes:
        logits: float32 ``[T, V]`` of every position.
        features: ``[T, targets*D]`` draft features, as they enter ``main_proj``.
    """

    logits: Tensor
    features: Tensor


class ReferenceModel:
    """DeepSeek-V4.1's text model and its draft layers, from stored or trainable weights.

    Args:
        config: the model's configuration.
        weights: its parameters. Plain float32 weights that require gradients get them.
        engram: derived hash constants; needed when the configuration has Engram layers.
        numerics: release or float32.
    """

    def __init__(
        self, config: ModelConfig, weights: ModelWeights, engram: EngramData | None, numerics: Numerics
    ) -> None:
        if engram is None and config.text.engram_layer_ids:
            raise ValueError(
                f"engram is None; a model with Engram layers {list(config.text.engram_layer_ids)} needs it"
            )
        self.config, self.weights, self.engram_data, self.numerics = config, weights, engram, numerics
        self.setting = Setting(config, numerics)

    def forward(self, ids: Tensor, trace: Recorder = ignore) -> ReferenceOutput:
        """Logits and draft features of every position of a sequence.

        Args:
            ids: int32 ``[T]``, at least one token.
            trace: records intermediate values.
        """
        state = self.start(ids)
        stream, pre = self.expand(embed(state.ids, self.weights.embed, self.numerics.dtype))
        for index in range(self.config.text.num_hidden_layers):
            stream = self.engram(index, stream, state, trace)
            stream, pre = self.layer(index, stream, pre, state, trace=trace)
        hidden = self.setting.norm(hyper_pre(stream, pre), self.weights.norm)
        features = torch.cat([state.features[i] for i in sorted(state.features)], dim=1)
        return ReferenceOutput(self.logits(hidden), features)

    def start(self, ids: Tensor) -> SequenceState:
        """State before the first layer; raises ValueError unless ``ids`` is a non-empty vector."""
        if ids.dim() != 1 or len(ids) == 0:
            raise ValueError(f"ids has shape {list(ids.shape)}; it must be [T] with at least one token")
        return SequenceState.start(ids.to(torch.int32), self.config)

    def expand(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Equal streams ``[T, m, D]`` and the pre-mix that reads the first one (3.1)."""
        m = self.config.text.hc_mult
        pre = torch.eye(m)[0].expand(len(hidden), m)
        return hidden[:, None, :].expand(-1, m, -1), pre

    def engram(self, index: int, stream: Tensor, state: SequenceState, trace: Recorder = ignore) -> Tensor:
        """Trunk after the Engram of layer ``index``; unchanged where the layer has none (5)."""
        role, weights = self.config.text.layers[index], self.weights.layers[index].engram
        if role.engram is None or weights is None or self.engram_data is None:
            return stream
        trace(Traced.ENGRAM_IN, index, stream)
        tokens = _last_tokens(state.ids, self.config.text.engram_max_ngram_size)
        windows = engram_windows(tokens, self.engram_data.vocabulary, self.engram_data.pad)
        rows = engram_hash(windows, self.engram_data.tables[role.engram].hash)
        trace(Traced.ENGRAM_IDS, index, rows)
        # The gathered rows are the FP8 operand themselves (5.5): nothing is quantized again.
        kv = linear(engram_gather(rows, weights.table, stream.dtype), weights.wkv, False, stream.dtype)
        eps = self.config.text.rms_norm_eps
        stream = engram_inject(stream, kv, weights.q_weight, weights.k_weight, eps, windows[:, 0] >= 0)
        trace(Traced.ENGRAM_OUT, index, stream)
        return stream

    def layer(
        self,
        index: int,
        stream: Tensor,
        pre: Tensor,
        state: SequenceState,
        *,
        topk: Tensor | None = None,
        trace: Recorder = ignore,
    ) -> tuple[Tensor, Tensor]:
        """One layer after its Engram: attention and experts around the trunk.

        Args:
            index: backbone layer.
            stream: ``[T, m, D]`` trunk in the numerics' type.
            pre: float32 ``[T, m]`` pre-mix of the sub-layer before.
            state: holds what the sources among the earlier layers made.
            topk: int32 ``[T, index_topk]`` selection to attend to instead of the layer's own.
            trace: records intermediate values.

        Returns:
            The trunk and the pre-mix for the next layer.
        """
        role, weights = self.config.text.layers[index], self.weights.layers[index]
        if role.draft_feature is not None:
            state.features[role.draft_feature] = stream_mean(stream)
        trace(Traced.IN_STREAM, index, stream)
        trace(Traced.IN_MIX, index, pre)

        mixes = self.mixes(stream, weights.hc_attn)
        x = self.setting.norm(hyper_pre(stream, pre), weights.attn_norm)
        trace(Traced.ATTN_IN, index, x)
        y = attention(x, role, weights.attn, state, self.setting, topk, trace)
        trace(Traced.ATTN_OUT, index, y)
        stream, pre = hyper_post(stream, y, mixes), mixes.pre

        mixes = self.mixes(stream, weights.hc_ffn)
        x = self.setting.norm(hyper_pre(stream, pre), weights.ffn_norm)
        trace(Traced.FFN_IN, index, x)
        y = self.experts(x, weights.moe, self.config.text.num_experts_per_tok, index, trace)
        trace(Traced.FFN_OUT, index, y)
        stream, pre = hyper_post(stream, y, mixes), mixes.pre
        trace(Traced.OUT_STREAM, index, stream)
        trace(Traced.OUT_MIX, index, pre)
        return stream, pre

    def mixes(self, stream: Tensor, weights: HyperWeights) -> HyperMixes:
        """Hyper-connection coefficients of a sub-layer from the trunk it finds (3.2)."""
        text = self.config.text
        constants = HyperConstants(text.rms_norm_eps, text.hc_eps, text.hc_sinkhorn_iters)
        return hyper_mixes(stream, weights.fn, weights.base, weights.scale, constants)

    def experts(self, x: Tensor, weights: MoeWeights, top_k: int, index: int, trace: Recorder) -> Tensor:
        """Routed experts plus the shared one, of normalised rows ``x [T, D]`` (4)."""
        text = self.config.text
        scores = linear(x, weights.gate, False, torch.float32)
        ids, factors = route(scores, weights.bias, top_k, text.routed_scaling_factor)
        trace(Traced.MOE_EXPERT, index, ids)
        trace(Traced.MOE_WEIGHT, index, factors)
        quantize = quantizes_input(weights.experts.w1[0], self.numerics)
        routed = experts(x, ids, factors, weights.experts, text.swiglu_limit, quantize)
        only = torch.zeros((len(x), 1), dtype=torch.int32)
        quantize = quantizes_input(weights.shared.w1[0], self.numerics)
        shared = experts(x, only, None, weights.shared, text.swiglu_limit, quantize)
        return combine(shared.squeeze(1), routed)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits float32 ``[rows, V]`` of normalised output rows (6)."""
        return linear(hidden, self.weights.head, False, torch.float32)

    def draft(self, features: Tensor, token: int, position: int, length: int | None = None) -> DraftOutput:
        """Draft greedily behind ``token``, which stands at ``position`` and which the backbone has not seen (8).

        Args:
            features: ``[at least position, targets*D]`` features of positions ``0..position-1``.
            token: the latest token.
            position: its position, at least 1.
            length: tokens to draft; ``dspark_block_size`` when None.
        """
        return draft_block(
            self, features, token, position, self.config.text.dspark_block_size if length is None else length
        )


def _last_tokens(ids: Tensor, order: int) -> Tensor:
    """int32 ``[T, order]``: column ``k`` holds the token ``k`` positions back, -1 before the start."""
    padded = torch.cat([ids.new_full((order - 1,), -1), ids])
    return padded.unfold(0, order, 1).flip(1)
