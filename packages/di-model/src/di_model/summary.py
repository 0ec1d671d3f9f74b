"""Counting a model by part and by layer, from its configuration alone."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from di_model.config import ModelConfig
from di_model.tensors import Part, TensorSpec, expected_tensors
from di_model.topology import LayerRole


class Stage(enum.Enum):
    """The model that a tensor serves."""

    BACKBONE = "backbone"
    DRAFT = "draft"
    VISION = "vision"


@dataclass(frozen=True)
class Count:
    """Tensors with their weights and stored bytes; a scale is no weight, an MXFP4 byte is two."""

    tensors: int
    parameters: int
    nbytes: int


@dataclass(frozen=True)
class PartCount:
    """One part of one stage."""

    stage: Stage
    part: Part
    count: Count


@dataclass(frozen=True)
class LayerCount:
    """One layer: ``name`` is its prefix in the checkpoint."""

    name: str
    role: LayerRole
    count: Count


@dataclass(frozen=True)
class ModelSummary:
    """All of a model; ``parts`` in the order of the enums, ``layers`` with draft layers last, ``dtypes`` by tag."""

    total: Count
    parts: tuple[PartCount, ...]
    layers: tuple[LayerCount, ...]
    dtypes: tuple[tuple[str, Count], ...]


def summarize(config: ModelConfig) -> ModelSummary:
    """Counts the tensors that a checkpoint of this configuration holds."""
    specs = tuple(expected_tensors(config).values())
    text = config.text
    by_part: dict[tuple[Stage, Part], list[TensorSpec]] = {}
    by_layer: dict[int, list[TensorSpec]] = {}
    by_dtype: dict[str, list[TensorSpec]] = {}
    for spec in specs:
        by_part.setdefault((stage_of(spec, config), spec.part), []).append(spec)
        by_dtype.setdefault(spec.dtype, []).append(spec)
        if spec.layer is not None:
            by_layer.setdefault(spec.layer, []).append(spec)
    roles = (*text.layers, *text.draft_layers)
    return ModelSummary(
        total=_count(specs),
        parts=tuple(
            PartCount(stage, part, _count(by_part[stage, part]))
            for stage in Stage
            for part in Part
            if (stage, part) in by_part
        ),
        layers=tuple(
            LayerCount(_layer_name(role, text.num_hidden_layers), role, _count(by_layer[role.index]))
            for role in roles
        ),
        dtypes=tuple((dtype, _count(group)) for dtype, group in sorted(by_dtype.items())),
    )


def stage_of(spec: TensorSpec, config: ModelConfig) -> Stage:
    """Stage that the tensor belongs to."""
    if spec.part is Part.VISION:
        return Stage.VISION
    draft = spec.layer is not None and spec.layer >= config.text.num_hidden_layers
    return Stage.DRAFT if draft else Stage.BACKBONE


def describe_role(role: LayerRole) -> tuple[str, ...]:
    """What a layer does beyond its window, in a few words each."""
    words = []
    if role.ratio:
        words.append(f"ratio {role.ratio}")
    if role.kv_source is not None:
        words.append("KV source" if role.is_kv_source else f"KV of {role.kv_source}")
    if role.index_source is not None:
        words.append("index source" if role.is_index_source else f"top-k of {role.index_source}")
    if role.is_index_source and role.index_k_source is not None:
        words.append("own index keys" if role.is_index_k_source else f"index keys of {role.index_k_source}")
    if role.is_candidate_source:
        words.append("candidate source")
    elif role.is_index_source and role.candidate_source is not None:
        words.append(f"candidates of {role.candidate_source}")
    if role.is_consumer:
        words.append("consumer")
    if role.engram is not None:
        words.append(f"Engram {role.engram}")
    if role.draft_feature is not None:
        words.append(f"draft feature {role.draft_feature}")
    return tuple(words)


def _layer_name(role: LayerRole, num_hidden_layers: int) -> str:
    draft = role.index - num_hidden_layers
    return f"mtp.{draft}" if draft >= 0 else f"layers.{role.index}"


def _count(specs: Iterable[TensorSpec]) -> Count:
    group = tuple(specs)
    return Count(len(group), sum(s.parameters for s in group), sum(s.nbytes for s in group))
