"""Configurations of small models that have every layer role of the release."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from di_model.engram_tables import compressed_vocabulary
from di_model.primes import engram_primes
from di_model.testing.tokenizer import IMAGE_TOKEN, NOISE_TOKEN, tiny_tokenizer

QUANTIZATION: Mapping[str, Any] = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}
# A window shorter than a block, limits of top-k and of candidate blocks that 40 tokens cross, YaRN that applies,
# an index source without keys of its own, a layer that is no source at all.
TEXT: Mapping[str, Any] = {
    "model_type": "deepseek_v41_text",
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_nextn_predict_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 32,
    "o_lora_rank": 32,
    "o_groups": 2,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "swiglu_limit": 10.0,
    "rms_norm_eps": 1e-20,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 32,
    },
    "sliding_window": 8,
    "compress_ratios": [0, 2, 2, 1, 1, 1, 0, 0],
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3, 4],
    "index_n_heads": 4,
    "index_head_dim": 32,
    "index_topk": 6,
    "candidate_source_layer_id": 3,
    "candidate_topk_blocks": 3,
    "candidate_block_size": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "engram_layer_ids": [0, 2],
    "engram_max_ngram_size": 3,
    "engram_vocab_size": 40,
    "engram_n_heads": 2,
    "engram_head_dim": 32,
    "engram_pad_token_id": 2,
    "dspark_block_size": 5,
    "dspark_target_layer_ids": [4, 5],
    "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
}
VISION: Mapping[str, Any] = {
    "model_type": "deepseek_v41_vision",
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "patch_size": 2,
    "rope_theta": 10000,
    "downsample_ratio": 2,
    "max_image_tokens": 64,
    "min_pixels": 64,
    "max_wh_ratio": None,
}


def tiny_config(
    *, quantized: bool = True, text: Mapping[str, Any] | None = None, vision: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The JSON object of a small model's ``config.json``.

    Args:
        quantized: False leaves ``quantization_config`` out: a BF16 checkpoint.
        text: keys of ``text_config`` to replace; what follows from others (row counts of the Engram tables, size
            of the compressed vocabulary, ids of protocol tokens) is filled in unless given.
        vision: keys of ``vision_config`` to replace.
    """
    merged = {**copy.deepcopy(dict(TEXT)), **(text or {})}
    tokenizer = tiny_tokenizer(merged["vocab_size"])
    merged.setdefault("dspark_noise_token_id", tokenizer.token_to_id(NOISE_TOKEN))
    if merged["engram_layer_ids"]:
        merged.setdefault("engram_num_embeddings", _table_rows(merged))
        merged.setdefault("engram_compressed_vocab_size", int(compressed_vocabulary(tokenizer).max()) + 1)
    config: dict[str, Any] = {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "image_token_id": tokenizer.token_to_id(IMAGE_TOKEN),
        "text_config": merged,
        "vision_config": {**VISION, **(vision or {})},
    }
    if quantized:
        config["quantization_config"] = copy.deepcopy(dict(QUANTIZATION))
    return config


def _table_rows(text: Mapping[str, Any]) -> list[int]:
    primes = engram_primes(
        num_layers=len(text["engram_layer_ids"]),
        vocab_size=text["engram_vocab_size"],
        max_ngram_size=text["engram_max_ngram_size"],
        num_heads=text["engram_n_heads"],
    )
    return [sum(map(sum, layer)) for layer in primes]
