"""A checkpoint of about a hundred million active parameters a token, with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from di_model.config import ModelConfig
from di_model.tensors import expected_tensors
from di_model.testing import tiny_config, tiny_tokenizer
from safetensors.torch import save_file

from di_engine.benchmark.random_weights import RandomBytes

TEXT: dict[str, Any] = {
    "vocab_size": 16384,
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_nextn_predict_layers": 0,
    "num_attention_heads": 16,
    "head_dim": 128,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 512,
    "o_lora_rank": 256,
    "o_groups": 4,
    "max_position_embeddings": 8192,
    "sliding_window": 128,
    "compress_ratios": [0] * 2 + [2] * 5 + [1] * 5,
    "kv_source_layer_ids": [2, 7],
    "index_source_layer_ids": [2, 5, 7, 10],
    "index_n_heads": 8,
    "index_head_dim": 64,
    "index_topk": 256,
    "candidate_source_layer_id": 7,
    "candidate_topk_blocks": 64,
    "candidate_block_size": 8,
    "moe_intermediate_size": 256,
    "n_routed_experts": 32,
    "num_experts_per_tok": 4,
    "engram_layer_ids": [1],
    "engram_vocab_size": 20000,
    "engram_n_heads": 4,
    "engram_head_dim": 64,
    "dspark_target_layer_ids": [11],
}
TORCH_DTYPES = {"F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.float8_e8m0fnu, "I8": torch.int8}


def generated_config() -> dict[str, Any]:
    """The object of its ``config.json``."""
    return tiny_config(text=TEXT)


def write_generated(directory: Path, raw: dict[str, Any], seed: int = 0) -> Path:
    """Write a checkpoint of that configuration with random weights; its directory, which is created."""
    config = ModelConfig.from_dict(raw)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw, indent=1), encoding="utf-8")
    tiny_tokenizer(config.text.vocab_size).save(str(directory / "tokenizer.json"))
    specs = expected_tensors(config)
    tensors = RandomBytes(seed).tensors(specs.values())
    stored = {
        name: tensor.view(TORCH_DTYPES.get(specs[name].dtype, tensor.dtype))
        for name, tensor in tensors.items()
    }
    save_file(stored, directory / "model.safetensors")
    return directory
