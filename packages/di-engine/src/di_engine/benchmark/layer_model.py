"""Layers of the release at full size, with random weights and filled caches."""

from __future__ import annotations

import copy
import enum
import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypedDict

import torch
from di_cache import CacheLayout, CachePool
from di_kernels.ops.formats import encode, encode_records
from di_kernels.ops.linear import LinearWeight
from di_kernels.ops.moe import ExpertWeights
from di_kernels.packing import pack, pack_all, pack_experts
from di_model.assemble import assemble
from di_model.cache_spec import cache_spec
from di_model.config import ModelConfig
from di_model.engram_tables import EngramData, engram_tables
from di_model.model import Model
from di_model.numerics import Numerics
from di_model.tensors import expected_tensors
from di_model.weights import LayerWeights
from torch import Tensor

from di_engine.benchmark.model_work import StepShape
from di_engine.benchmark.random_weights import RandomBytes

EXPERT = re.compile(r"layers\.\d+\.ffn\.experts\.\d+\.")
CELLS_AT_ONCE = 4096


class Layout(enum.Enum):
    """How weights lie in memory."""

    STORED = "stored"
    """As in the checkpoint."""
    PACKED = "packed"
    """In groups of 16 rows (:mod:`di_kernels.packing`)."""


def random_layers(config: ModelConfig, max_positions: int, layout: Layout, seed: int = 0) -> Model:
    """A model with random weights in their stored formats. All layers share one bank of experts: what differs between
    the layers of a real model is where their experts are, and a step of a single layer does not see that."""
    random = RandomBytes(seed)
    specs = [spec for spec in expected_tensors(config).values() if not spec.name.startswith("vision.")]
    tensors = random.tensors(spec for spec in specs if _one_expert(spec.name) == spec.name)
    tensors |= {spec.name: tensors[_one_expert(spec.name)] for spec in specs}
    bank = _random_experts(config, layout, random)
    weights = assemble(config, tensors, draft=False)
    weights = replace(weights, layers=tuple(_in_layout(layer, bank, layout) for layer in weights.layers))
    return Model(config, weights, _engram(config), Numerics.RELEASE, max_positions)


def _one_expert(name: str) -> str:
    """The name of a tensor that stands for those of all experts until there is the bank."""
    return EXPERT.sub("layers.0.ffn.experts.0.", name)


def _random_experts(config: ModelConfig, layout: Layout, random: RandomBytes) -> ExpertWeights:
    """Packed one by one: there is no second copy of all of them."""
    text = config.text
    up, down = (text.moe_intermediate_size, text.hidden_size), (text.hidden_size, text.moe_intermediate_size)
    matrices = []
    for _ in range(text.n_routed_experts):
        expert = [random.mxfp4(*shape) for shape in (up, up, down)]
        matrices.append(pack_all(expert) if layout is Layout.PACKED else expert)
    w1, w3, w2 = zip(*matrices, strict=True)
    return ExpertWeights(w1, w3, w2)


def _in_layout(layer: LayerWeights, bank: ExpertWeights, layout: Layout) -> LayerWeights:
    if layout is Layout.PACKED:
        moe = replace(
            layer.moe, gate=pack(layer.moe.gate), shared=pack_experts(layer.moe.shared), experts=bank
        )
        return replace(layer, attn=_packed(layer.attn), engram=_packed(layer.engram), moe=moe)
    return replace(layer, moe=replace(layer.moe, experts=bank))


def _packed(part: Any) -> Any:
    """Nested records with every matrix packed."""
    if isinstance(part, LinearWeight):
        return pack(part)
    if not is_dataclass(part) or isinstance(part, type):
        return part
    return replace(part, **{each.name: _packed(getattr(part, each.name)) for each in fields(part)})


def _engram(config: ModelConfig) -> EngramData:
    """Hash constants for a vocabulary that is folded to its size without a tokenizer."""
    text = config.text
    size = text.engram_compressed_vocab_size or text.vocab_size
    vocabulary = torch.arange(text.vocab_size, dtype=torch.int32) % size
    return EngramData(vocabulary, text.engram_pad_token_id, engram_tables(text, size))


def layers_of(model: Model, indices: Sequence[int]) -> Model:
    """The same model with some of its layers."""
    part = copy.copy(model)
    part.layers = tuple(model.layers[index] for index in indices)
    return part


def filled_cache(config: ModelConfig, shape: StepShape, seed: int = 1) -> CachePool:
    """Pools for the sequences of a step, with encoded random values wherever its rows may read."""
    layout = CacheLayout.from_spec(cache_spec(config, Numerics.RELEASE, draft=False))
    cache = CachePool(layout, 1 + shape.sequences * _blocks(layout, shape), 1 + shape.sequences)
    random, spec = RandomBytes(seed), layout.spec
    for regions in layout.layers:
        layer = regions.layer
        window = encode_records(random.values(CELLS_AT_ONCE, spec.head_dim), spec.window_format)
        _fill(cache.window_ring(layer), window)
        if regions.compress is not None:
            ring = cache.compress_ring(layer)
            ring.copy_(random.values(*ring.shape, dtype=torch.float32))
        if regions.entries is not None:
            entries = encode_records(random.values(CELLS_AT_ONCE, spec.head_dim), spec.main_format)
            _fill(cache.entries(layer), entries)
        if regions.index is not None:
            values, scales = encode(random.values(CELLS_AT_ONCE, spec.index_head_dim), spec.index_format)
            _fill(cache.index_values(layer), values)
            _fill(cache.index_scales(layer), scales)
    return cache


def _fill(view: Tensor | None, records: Tensor) -> None:
    """Repeat records over units ``[units, records, bytes]``."""
    assert view is not None  # release numerics have scales
    for unit in range(len(view)):
        start = unit * view.shape[1] % (len(records) - view.shape[1])
        view[unit] = records[start : start + view.shape[1]]


def _blocks(layout: CacheLayout, shape: StepShape) -> int:
    return layout.blocks_for(shape.start + shape.rows)


class StepArrays(TypedDict):
    """What ``build_batch`` and ``NativeModel.forward`` take of a step, int32."""

    tokens: Tensor
    q_start: Tensor
    q_len: Tensor
    slots: Tensor
    block_table: Tensor
    context: Tensor


def step_arrays(config: ModelConfig, layout: CacheLayout, shape: StepShape, seed: int = 2) -> StepArrays:
    """The arrays of a step: random tokens, blocks one after another."""
    generator = torch.Generator().manual_seed(seed)
    count, blocks = shape.sequences, _blocks(layout, shape)
    lookback = max(1, config.text.engram_max_ngram_size - 1)

    def tokens(*size: int) -> Tensor:
        return torch.randint(0, config.text.vocab_size, size, generator=generator, dtype=torch.int32)

    context = tokens(count, lookback) if shape.start >= lookback else torch.full((count, lookback), -1)
    return {
        "tokens": tokens(shape.num_rows),
        "q_start": torch.full((count,), shape.start, dtype=torch.int32),
        "q_len": torch.full((count,), shape.rows, dtype=torch.int32),
        "slots": torch.arange(1, count + 1, dtype=torch.int32),
        "block_table": torch.arange(1, count * blocks + 1, dtype=torch.int32).view(count, blocks),
        "context": context.to(torch.int32),
    }
