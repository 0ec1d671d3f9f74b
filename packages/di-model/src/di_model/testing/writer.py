"""Writing a random checkpoint in the released layout: configuration, tokenizer, shards and index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from di_model.config import SCALE_BLOCK, ModelConfig, QuantizationConfig
from di_model.tensors import expected_tensors
from di_model.testing.configs import tiny_config
from di_model.testing.tokenizer import tiny_tokenizer
from di_model.testing.values import RandomWeights

_QUANTIZED = QuantizationConfig("fp8", "fp4", "dynamic", (SCALE_BLOCK, SCALE_BLOCK), "ue8m0")


def write_checkpoint(
    directory: str | Path,
    config: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    num_shards: int = 3,
    name_prefix: str = "",
) -> Path:
    """Writes a checkpoint with random weights and returns its directory, which is created.

    Args:
        directory: where to write.
        config: object for ``config.json``, default :func:`~di_model.testing.tiny_config`; sizes are free.
        seed: of the weights. A tensor depends on the seed and its own name only, and has the same values whether
            the configuration is quantized or not.
        num_shards: shard files, with an index; 0 writes one ``model.safetensors`` without an index.
        name_prefix: put before every tensor name, such as ``model.``.

    Raises ConfigError for a configuration that is not a model, ValueError for a negative ``num_shards`` or a
    vocabulary too small for the tokenizer.
    """
    if num_shards < 0:
        raise ValueError(f"num_shards = {num_shards} is not allowed; allowed: 0 or more")
    raw = dict(tiny_config() if config is None else config)
    parsed = ModelConfig.from_dict(raw)
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(raw, indent=2), encoding="utf-8")
    tiny_tokenizer(parsed.text.vocab_size).save(str(path / "tokenizer.json"))
    tensors = {name_prefix + name: tensor for name, tensor in random_tensors(parsed, seed=seed).items()}
    if num_shards == 0:
        save_file(tensors, path / "model.safetensors")
    else:
        _write_shards(path, tensors, num_shards)
    return path


def random_tensors(config: ModelConfig, *, seed: int = 0) -> dict[str, Tensor]:
    """The tensors of a random checkpoint by name, in their stored types (FP8 types as torch has them)."""
    weights = RandomWeights(seed, config.quantization is not None)
    tensors: dict[str, Tensor] = {}
    # Values are drawn from the quantized form, so that they do not depend on the form that is stored.
    for spec in expected_tensors(replace(config, quantization=_QUANTIZED)).values():
        if spec.dtype != "F8_E8M0":
            tensors |= weights.draw(spec)
    return tensors


def _write_shards(path: Path, tensors: Mapping[str, Tensor], num_shards: int) -> None:
    """Consecutive tensors to each shard, split by bytes."""
    total = sum(tensor.nbytes for tensor in tensors.values())
    groups: list[dict[str, Tensor]] = [{} for _ in range(num_shards)]
    written = 0
    for name, tensor in tensors.items():
        groups[min(num_shards - 1, written * num_shards // total)][name] = tensor
        written += tensor.nbytes
    weight_map: dict[str, str] = {}
    for number, group in enumerate(filter(None, groups), start=1):
        shard = f"model-{number:05}-of-{sum(map(bool, groups)):05}.safetensors"
        save_file(group, path / shard)
        weight_map |= dict.fromkeys(group, shard)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (path / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
