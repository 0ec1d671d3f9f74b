"""nano's trainable parameters: float32 tensors under the names of an unquantized checkpoint, and their first values."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from di_kernels.ops.rope import rope_frequencies
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

LOOK_BACK_HEADS, LOOK_BACK_PAIRS = 2, 4
LOOK_BACK_LATENT, LOOK_BACK_KEY, LOOK_BACK_QUERY = 0.3, 0.6, 1.1
"""Sizes of the shared parts of query latent, key and query; together they put about 5 between neighbours' logits."""

Parameters = Mapping[str, Tensor]


def initial_parameters(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """Every tensor of a checkpoint of ``config`` by name, float32 in its logical shape, requiring gradients.

    Matrices are normal with deviation 0.04, norms are one, hyper-connections start as a plain residual network
    (checkpoint specification, 2.10), and two heads of layer 0 start by looking one and two tokens back. Tensors of
    draft and vision are drawn too; the backbone's training does not touch them.

    Raises ValueError for a configuration with ``quantization_config``: training sees logical shapes.
    """
    if config.quantization is not None:
        raise ValueError("config.quantization is set; parameters are those of an unquantized configuration")
    generator = torch.Generator().manual_seed(seed)
    streams = config.text.hc_mult
    specs = expected_tensors(config)
    parameters = {name: _initial(spec, streams, generator) for name, spec in specs.items()}
    _look_back(config, parameters)
    return {name: tensor.requires_grad_() for name, tensor in parameters.items()}


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
        return (torch.randn(shape, generator=generator) + 1.0) * EMBEDDING_STD
    std = TABLE_STD if spec.part is Part.ENGRAM_TABLE else MATRIX_STD
    return torch.randn(shape, generator=generator) * std


def _look_back(config: ModelConfig, parameters: Mapping[str, Tensor]) -> None:
    """Let heads 0 and 1 of layer 0 begin by attending one and two tokens back.

    A value is found again by the name before it, so copying from the context needs such a head first and shows no gain
    until it has one: hundreds of thousands of tokens pass before it forms. Queries and keys get a part that all
    tokens share (the mean of the embeddings), turned against each other by as many positions in the fastest rotary
    pairs.
    """
    text, prefix = config.text, "layers.0.attn"
    shared = torch.full((text.hidden_size,), text.hidden_size**-0.5)
    rotary = text.head_dim - text.qk_rope_head_dim
    frequencies = rope_frequencies(text.qk_rope_head_dim, text.rope_theta)[:LOOK_BACK_PAIRS]
    parameters[f"{prefix}.wq_a.weight"][0] += LOOK_BACK_LATENT * shared
    for pair, frequency in enumerate(frequencies.tolist()):
        parameters[f"{prefix}.wkv.weight"][rotary + 2 * pair] += LOOK_BACK_KEY * shared
        for head in range(LOOK_BACK_HEADS):
            angle, row = -(head + 1) * frequency, head * text.head_dim + rotary + 2 * pair
            matrix = parameters[f"{prefix}.wq_b.weight"]
            matrix[row, 0] += LOOK_BACK_QUERY * math.cos(angle)
            matrix[row + 1, 0] += LOOK_BACK_QUERY * math.sin(angle)


def _hyper_base(layer: int, streams: int) -> Tensor:
    """Read stream ``layer mod m``, write to all alike, mix little."""
    read = torch.full((streams,), -HYPER_BASE)
    read[layer % streams] = HYPER_BASE
    mix = torch.full((streams, streams), -HYPER_BASE).fill_diagonal_(HYPER_BASE)
    return torch.cat([read, torch.zeros(streams), mix.flatten()])
