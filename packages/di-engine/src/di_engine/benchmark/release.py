"""Sizes of the released DeepSeek-V4.1, and models cut from it that keep its layers at full size."""

from __future__ import annotations

from typing import Any

from di_model.config import ModelConfig
from di_model.testing import tiny_config

TEXT: dict[str, Any] = {
    "vocab_size": 129280,
    "hidden_size": 5120,
    "num_attention_heads": 64,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1280,
    "o_lora_rank": 1024,
    "o_groups": 8,
    "max_position_embeddings": 1 << 20,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 65536,
    },
    "sliding_window": 128,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 512,
    "candidate_topk_blocks": 2048,
    "candidate_block_size": 8,
    "moe_intermediate_size": 2304,
    "n_routed_experts": 384,
    "num_experts_per_tok": 6,
    "engram_max_ngram_size": 4,
    "engram_vocab_size": 16_000_000,
    "engram_n_heads": 8,
    "engram_head_dim": 256,
    "engram_compressed_vocab_size": 99092,
    "dspark_n_routed_experts": 128,
    "dspark_num_experts_per_tok": 3,
    "dspark_markov_rank": 256,
    "dspark_noise_token_id": 128799,
}
WHOLE: dict[str, Any] = {
    "num_hidden_layers": 40,
    "num_nextn_predict_layers": 3,
    "compress_ratios": [0] * 2 + [2] * 18 + [1] * 20 + [0] * 3,
    "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
    "candidate_source_layer_id": 20,
    "engram_layer_ids": [1, 14],
    "dspark_target_layer_ids": [37, 38, 39],
}
SMALL_VOCABULARY: dict[str, Any] = {
    "vocab_size": 16384,
    "engram_compressed_vocab_size": 16384,
    "dspark_noise_token_id": 16000,
}
"""Where only layers count: embedding and head of the release are 2.6 GB."""
ONE_OF_EACH: dict[str, Any] = {
    "num_hidden_layers": 7,
    "num_nextn_predict_layers": 0,
    "compress_ratios": [0, 0, 2, 2, 1, 1, 1],
    "kv_source_layer_ids": [2, 4],
    "index_source_layer_ids": [2, 4, 6],
    "candidate_source_layer_id": 4,
    "engram_layer_ids": [1],
    "dspark_target_layer_ids": [6],
}
"""A model with one layer of each kind."""


def released_config() -> ModelConfig:
    """The whole model."""
    return ModelConfig.from_dict(tiny_config(text={**TEXT, **WHOLE}))


def layers_config(experts: int, engram_rows: int) -> ModelConfig:
    """One layer of each kind at full size.

    Args:
        experts: routed experts that a layer keeps; as many as memory holds.
        engram_rows: about as many rows as each segment of the Engram table has, where memory does not hold 16 million.
    """
    text = {
        **TEXT,
        **SMALL_VOCABULARY,
        **ONE_OF_EACH,
        "n_routed_experts": experts,
        "engram_vocab_size": engram_rows,
    }
    return ModelConfig.from_dict(tiny_config(text=text))
