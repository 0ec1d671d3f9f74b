"""The FLOPs estimator's view of a DeepSeek-V4.1 model."""

from __future__ import annotations

from di_model.config import LayerRole, ModelConfig
from di_model.numerics import Numerics
from di_scheduler.flops import LayerShape, ModelShape, Precision


def model_shape(config: ModelConfig, numerics: Numerics = Numerics.RELEASE) -> ModelShape:
    """What :class:`di_scheduler.flops.FlopsEstimator` needs to know of a model.

    A contraction costs what its wider operand does: FP8 activations meet FP8 and FP4 weights at the cost of FP8, index
    queries and keys are both FP4. Without quantized weights linears are BF16, and under ``Numerics.FLOAT32`` every
    precision is FP32; the terms whose cost the scheduler spec, 15, fixes (router, core attention, output head) stay.
    """
    text = config.text
    linear = Precision.BF16 if config.quantization is None else Precision.FP8
    index = Precision.FP4
    if numerics is Numerics.FLOAT32:
        linear = index = Precision.FP32
    return ModelShape(
        layers=tuple(_layer_shape(role) for role in text.layers),
        producer_layers=text.consumer_start,
        hidden_size=text.hidden_size,
        vocab_size=text.vocab_size,
        num_heads=text.num_attention_heads,
        head_dim=text.head_dim,
        q_lora_rank=text.q_lora_rank,
        o_lora_rank=text.o_lora_rank,
        o_groups=text.o_groups,
        window=text.sliding_window,
        index_topk=text.index_topk,
        index_heads=text.index_n_heads,
        index_head_dim=text.index_head_dim,
        candidate_blocks=text.candidate_topk_blocks,
        candidate_block_size=text.candidate_block_size,
        expert_width=text.moe_intermediate_size,
        experts_per_token=text.num_experts_per_tok,
        shared_experts=text.n_shared_experts,
        routed_experts=text.n_routed_experts,
        hc_streams=text.hc_mult,
        hc_shifted=text.hc_shifted,
        engram_width=text.engram_features if text.engram_layer_ids else 0,
        attention_precision=linear,
        expert_precision=linear,
        index_precision=index,
        engram_precision=linear,
    )


def _layer_shape(role: LayerRole) -> LayerShape:
    return LayerShape(
        ratio=role.ratio,
        stores_kv=role.is_kv_source,
        computes_index=role.is_index_source,
        stores_index_keys=role.is_index_k_source,
        # The source of the candidates scores every entry itself.
        uses_candidates=role.is_index_source
        and role.candidate_source is not None
        and not role.is_candidate_source,
        has_engram=role.engram is not None,
    )
