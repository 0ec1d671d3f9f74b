"""nano's ``config.json``: every part of V4.1 at sizes that fit 12 MB.

Limits are small enough to matter within a context of 4,096 tokens: a window of 128, 128 of up to 4,096 entries
selected, 32 of up to 512 candidate blocks.
"""

from __future__ import annotations

from typing import Any

from di_model.engram_tables import compressed_vocabulary
from tokenizers import Tokenizer

from examples.nano.tokenizer import IMAGE_TOKEN, NOISE_TOKEN, VOCAB_SIZE

MAX_POSITIONS = 4096
QUANTIZATION = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}
# Layer 0 sees its window only; 1 and 2 share the compressed KV (ratio 2) and the selection of layer 1; 3 to 5 are
# YoCo consumers of layer 3's KV (ratio 1), with selections of 3 (which picks candidate blocks) and 4.
TEXT: dict[str, Any] = {
    "model_type": "deepseek_v41_text",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 192,
    "num_hidden_layers": 6,
    "num_nextn_predict_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "qk_rope_head_dim": 32,
    "q_lora_rank": 128,
    "o_lora_rank": 64,
    "o_groups": 2,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "swiglu_limit": 10.0,
    "rms_norm_eps": 1e-20,
    "tie_word_embeddings": False,
    "max_position_embeddings": MAX_POSITIONS,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 1024,
    },
    "sliding_window": 128,
    "compress_ratios": [0, 2, 2, 1, 1, 1, 0, 0],
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3, 4],
    "index_n_heads": 4,
    "index_head_dim": 32,
    "index_topk": 128,
    "candidate_source_layer_id": 3,
    "candidate_topk_blocks": 32,
    "candidate_block_size": 8,
    "moe_intermediate_size": 160,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "engram_layer_ids": [1],
    "engram_max_ngram_size": 3,
    "engram_vocab_size": 6200,
    "engram_n_heads": 4,
    "engram_head_dim": 32,
    "engram_pad_token_id": 2,
    "dspark_block_size": 5,
    "dspark_target_layer_ids": [3, 4, 5],
    "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
}
VISION: dict[str, Any] = {
    "model_type": "deepseek_v41_vision",
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "patch_size": 4,
    "rope_theta": 10000,
    "downsample_ratio": 2,
    "max_image_tokens": 64,
    "min_pixels": 256,
    "max_wh_ratio": None,
}


def nano_config(tokenizer: Tokenizer, *, quantized: bool = True) -> dict[str, Any]:
    """The JSON object of nano's ``config.json`` for its tokenizer.

    Args:
        tokenizer: gives the ids of the protocol tokens and the size of the compressed vocabulary.
        quantized: False leaves ``quantization_config`` out: the model as it is trained.
    """
    classes = int(compressed_vocabulary(tokenizer).max()) + 1
    config: dict[str, Any] = {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "image_token_id": tokenizer.token_to_id(IMAGE_TOKEN),
        "text_config": {
            **TEXT,
            "dspark_noise_token_id": tokenizer.token_to_id(NOISE_TOKEN),
            "engram_compressed_vocab_size": classes,
        },
        "vision_config": dict(VISION),
    }
    if quantized:
        config["quantization_config"] = dict(QUANTIZATION)
    return config
