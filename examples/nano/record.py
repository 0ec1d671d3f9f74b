"""Recording beside an exported nano what its file no longer tells: the loss of its weights before quantization.

    .venv/bin/python -m examples.nano.record --out .cache/nano/export

``di eval`` reads the record, ``training.json``, and says what the stored formats cost.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from di_engine import LLM, EngineConfig, LoadedModel, Numerics
from di_engine.capacity import available_memory, plan_capacity
from di_engine.evaluation import EvaluationSet
from di_engine.evaluation.evaluate import CONTEXT, TRAINING_FILE, compared_bits_per_byte
from di_model.assemble import assemble
from di_model.config import ModelConfig
from di_model.engram_tables import derive_engram
from di_model.model import Model
from di_model.tensors import expected_tensors
from di_model.tokenizer import Tokenizer
from tokenizers import Tokenizer as RawTokenizer
from torch import Tensor

from examples.nano.config import nano_config


def float32_model(
    tokenizer: RawTokenizer, parameters: Mapping[str, Tensor], config: EngineConfig
) -> LoadedModel:
    """The engine's model over float32 weights as training has them, without its draft layers."""
    model_config = ModelConfig.from_dict(nano_config(tokenizer, quantized=False))
    tensors = {
        name: parameters[name.replace(".bias_vl", ".bias")].detach().float()
        for name in expected_tensors(model_config)
    }
    capacity = plan_capacity(config, model_config, available_memory())
    weights = assemble(model_config, tensors, draft=False)
    engram = derive_engram(model_config, tokenizer)
    model = Model(model_config, weights, engram, Numerics.FLOAT32, CONTEXT)
    return LoadedModel(model_config, Tokenizer(tokenizer, model_config), model, capacity)


def float32_bits_per_byte(
    tokenizer: RawTokenizer, parameters: Mapping[str, Tensor], data: EvaluationSet
) -> float:
    """What ``di eval`` compares number formats by, of float32 weights that were never quantized."""
    settings = {
        "numerics": Numerics.FLOAT32,
        "max_model_len": CONTEXT,
        "max_num_seqs": 1,
        "load_draft": False,
        "max_draft_tokens": 0,
    }
    config = EngineConfig.from_dict({"model": "trained", **settings})
    with LLM("trained", loaded=float32_model(tokenizer, parameters, config), **settings) as llm:
        return compared_bits_per_byte(llm, data)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Record the loss before quantization beside an exported nano."
    )
    parser.add_argument("--work", type=Path, default=Path(".cache/nano"), help="tokenizer and checkpoint")
    parser.add_argument("--out", type=Path, required=True, help="the exported directory")
    options = parser.parse_args()
    tokenizer = RawTokenizer.from_file(str(options.work / "tokenizer.json"))
    state = torch.load(options.work / "checkpoint.pt", weights_only=True)
    loss = float32_bits_per_byte(tokenizer, state["parameters"], EvaluationSet.shipped())
    record = {
        "seed": state["seed"],
        "steps": state["progress"]["step"],
        "tokens": state["progress"]["tokens"],
        "float32_bits_per_byte": round(loss, 5),
    }
    (options.out / TRAINING_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
