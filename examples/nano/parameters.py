"""nano's trainable parameters: float32 tensors under the names of an unquantized checkpoint, and their first values."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from di_model.config import ModelConfig
from di_model.tensors import Part, TensorSpec, expected_tensors
from torch import Tensor

MATRIX_STD = 0.04
EMBEDDING_STD = 0.2
TABLE_STD = 0.5
"""Engram rows pass no norm of their own before their projection; smaller ones are slow to be heard."""
HYPER_SCALE, HYPER_BASE = 0.01, 3.0
SINK = 0.0
QUERY_GAIN = 3.0
"""First weight of query norms. Looking one token back takes large products of queries and keys, keys are of unit size,
and small queries need a thousand steps to grow that far."""

Parameters = Mapping[str, Tensor]


def initial_parameters(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """Every tensor of a checkpoint of ``config`` by name, float32 in its logical shape, requiring gradients.

    Matrices are normal with deviation 0.04, norms are one, hyper-connections start as a plain residual network
    (checkpoint specification, 2.10). Tensors of draft and vision are drawn too; the backbone's training does not
    touch them.

    Raises ValueError for a configuration with ``quantization_config``: training sees logical shapes.
    """
    if config.quantization is not None:
        raise ValueError("config.quantization is set; parameters are those of an unquantized configuration")
    generator = torch.Generator().manual_seed(seed)
    streams = config.text.hc_mult
    return {
        name: _initial(spec, streams, generator).requires_grad_()
        for name, spec in expected_tensors(config).items()
    }


def is_trained(name: str) -> bool:
    """Whether the backbone's training changes the tensor; selection biases follow their own rule."""
    return not name.startswith(("mtp.", "vision.", "aligner.", "image_")) and ".gate.bias" not in name


def is_projection(name: str, tensor: Tensor) -> bool:
    """Whether the tensor is a matrix between hidden rows, as opposed to a table, a head or a router."""
    tables = (
        "embed.weight",
        "head.weight",
        "gate.weight",
        "_fn",
        "q_weight",
        "k_weight",
        "weights_proj.weight",
    )
    return tensor.dim() == 2 and not name.endswith(tables)


def _initial(spec: TensorSpec, streams: int, generator: torch.Generator) -> Tensor:
    name, shape = spec.name, spec.shape
    if name.endswith("attn.q_norm.weight"):
        return torch.full(shape, QUERY_GAIN)
    if spec.part is Part.NORM or name.endswith(("q_weight", "k_weight", "norm1.weight", "norm2.weight")):
        return torch.ones(shape)
    if name.endswith("_base"):
        return _hyper_base(spec.layer or 0, streams)
    if name.endswith("_scale"):
        return torch.full(shape, HYPER_SCALE)
    if name.endswith("_fn") or name.endswith((".bias", ".bias_vl")):
        return torch.zeros(shape)
    if name.endswith("attn_sink"):
        return torch.full(shape, SINK)
    if spec.part is Part.EMBEDDING:
        # What all tokens share gives positional attention, which has no biases, something constant to start from.
        shared = torch.randn(shape[1], generator=generator)
        return (torch.randn(shape, generator=generator) + shared) * EMBEDDING_STD
    std = TABLE_STD if spec.part is Part.ENGRAM_TABLE else MATRIX_STD
    return torch.randn(shape, generator=generator) * std


def _hyper_base(layer: int, streams: int) -> Tensor:
    """Read stream ``layer mod m``, write to all alike, mix little."""
    read = torch.full((streams,), -HYPER_BASE)
    read[layer % streams] = HYPER_BASE
    mix = torch.full((streams, streams), -HYPER_BASE).fill_diagonal_(HYPER_BASE)
    return torch.cat([read, torch.zeros(streams), mix.flatten()])
