"""Writing a trained nano as a checkpoint in the released layout: FP8, MXFP4 and BF16 tensors, index, tokenizer.

.venv/bin/python -m examples.nano.export --out .cache/nano/export
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from di_model.config import ModelConfig
from di_model.tensors import expected_tensors
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from examples.nano.config import nano_config
from examples.nano.quantize import quantize, restore

SHARD = "model-00001-of-00001.safetensors"


def export(directory: Path, tokenizer: Tokenizer, parameters: Mapping[str, Tensor]) -> None:
    """Writes ``config.json``, ``tokenizer.json``, one shard and its index.

    Args:
        directory: where to; created.
        tokenizer: nano's.
        parameters: float32 by name, as :func:`~examples.nano.parameters.initial_parameters` has them.
    """
    config = nano_config(tokenizer)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = quantized_tensors(ModelConfig.from_dict(config), parameters)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    save_file(tensors, directory / SHARD)
    shutil.copymode(directory / "config.json", directory / SHARD)  # safetensors lets only the owner read
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
        "weight_map": dict.fromkeys(sorted(tensors), SHARD),
    }
    (directory / "model.safetensors.index.json").write_text(json.dumps(index) + "\n", encoding="utf-8")


def quantized_tensors(config: ModelConfig, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every stored tensor of a quantized ``config`` from its float32 weights.

    Image tokens are routed by the biases of text: training has seen no images.
    """
    tensors: dict[str, Tensor] = {}
    for name, spec in expected_tensors(config).items():
        if spec.dtype != "F8_E8M0":
            source = name.replace(".bias_vl", ".bias")
            tensors |= quantize(spec, parameters[source].detach().clone())
    return tensors


def restored_parameters(config: ModelConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Float32 weights by name as a quantized checkpoint of ``config`` holds them: what export costs can be measured."""
    specs = expected_tensors(config)
    return {name: restore(spec, tensors) for name, spec in specs.items() if spec.dtype != "F8_E8M0"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Export a trained nano to the released formats.")
    parser.add_argument("--work", type=Path, default=Path(".cache/nano"), help="tokenizer and checkpoint")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.work / "tokenizer.json"))
    state = torch.load(options.work / "checkpoint.pt", weights_only=True)
    export(options.out, tokenizer, state["parameters"])


if __name__ == "__main__":
    main()
