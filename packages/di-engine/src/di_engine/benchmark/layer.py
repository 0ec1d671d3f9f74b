"""``di bench layer``: a step through layers of the release at full size, beside what it has to read and compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import NamedTuple

import torch
from di_cache import CachePool
from di_model.batch import Batch, build_batch
from di_model.config import ModelConfig
from di_model.model import Model
from di_model.native import NativeModel
from di_model.weights import LayerWeights
from torch import Tensor

from di_engine.benchmark.layer_model import Layout, filled_cache, layers_of, random_layers, step_arrays
from di_engine.benchmark.measure import Case, Reached, as_bytes, measure, settle, using_threads
from di_engine.benchmark.model_work import ModelWork, StepShape
from di_engine.benchmark.release import layers_config
from di_engine.benchmark.work import Work

MEMORY_SHARE = 0.4
"""Of the memory that is free, for experts."""
ENGRAM_ROWS = 1 << 17
"""About as many rows as a segment of the Engram table has: 24 segments of 264 bytes a row are 830 MB, far beyond any
cache, where the release has 16 million."""
CONTEXT = 8192


class Kind(NamedTuple):
    """Layers that run one after another, by their index in :data:`~di_engine.benchmark.release.ONE_OF_EACH`."""

    name: str
    layers: tuple[int, ...]


KINDS = (
    Kind("window only", (0,)),
    Kind("window only, Engram", (1,)),
    Kind("ratio 2, source", (2,)),
    Kind("ratio 2, source and reader", (2, 3)),
    Kind("ratio 1, source", (4,)),
    Kind("ratio 1, source and reader", (4, 5)),
    Kind("ratio 1, source and index over candidates", (4, 6)),
)
"""A layer that reads what another selected is measured behind it."""


class Step(NamedTuple):
    """A step to measure."""

    name: str
    shape: StepShape


STEPS = (
    Step("decode, batch 1", StepShape(1, CONTEXT, 1)),
    Step("decode, batch 16", StepShape(16, CONTEXT, 1)),
    Step("prefill of 512", StepShape(1, 0, 512)),
)


@dataclass(frozen=True, slots=True)
class LayerBench:
    """Layers of each kind, built once."""

    config: ModelConfig
    model: Model
    work: ModelWork

    @classmethod
    def build(cls, config: ModelConfig, layout: Layout) -> LayerBench:
        """Random weights for a configuration of :func:`~di_engine.benchmark.release.layers_config`."""
        longest = max(step.shape.start + step.shape.rows for step in STEPS)
        return cls(config, random_layers(config, longest, layout), ModelWork(config))

    def case(self, kind: Kind, step: Step, cache: CachePool) -> Case:
        """A step through the layers of a kind. The experts that it hits are found by running it once."""
        model = layers_of(self.model, kind.layers)
        arrays = step_arrays(self.config, cache.layout, step.shape)
        hit = experts_hit(model, build_batch(cache.layout, **arrays), cache)
        work = Work(0)
        buffers: list[Tensor] = []
        for index in kind.layers:
            work += self.work.layer(self.config.text.layers[index], step.shape, len(hit[index]))
            buffers += weights_read(self.model.weights.layers[index], hit[index])
        return Case(
            family="layer",
            name=kind.name,
            size=step.name,
            rows=step.shape.num_rows,
            work=work,
            members=(partial(NativeModel(model, cache).forward, **arrays),),
            buffers=(as_bytes(*buffers),),
        )


def experts_hit(model: Model, batch: Batch, cache: CachePool) -> dict[int, list[int]]:
    """The routed experts that a step hits, by layer."""
    hit: dict[int, list[int]] = {}

    def observe(name: str, layer: int, value: Tensor) -> None:
        if name == "moe_expert":
            hit[layer] = sorted(set(value.flatten().tolist()))

    with torch.inference_mode():
        model.forward(batch, cache, observe)
    return hit


def weights_read(layer: LayerWeights, experts: Sequence[int]) -> list[Tensor]:
    """Stored tensors of a layer that a step reads whole: all but other experts and the Engram table."""
    moe = layer.moe
    parts: list[object] = [
        layer.attn_norm,
        layer.ffn_norm,
        layer.hc_attn,
        layer.hc_ffn,
        layer.attn,
        moe.gate,
        moe.bias,
        moe.shared,
    ]
    if layer.engram is not None:
        parts += [layer.engram.wkv, layer.engram.q_weight, layer.engram.k_weight]
    parts += [bank[expert] for expert in experts for bank in (moe.experts.w1, moe.experts.w3, moe.experts.w2)]
    return [tensor for part in parts for tensor in stored_tensors(part)]


def stored_tensors(part: object) -> Iterator[Tensor]:
    """All tensors in nested records."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, tuple):
        for item in part:
            yield from stored_tensors(item)
    elif is_dataclass(part):
        for field in fields(part):
            yield from stored_tensors(getattr(part, field.name))


def experts_in_memory(config: ModelConfig, free: int) -> int:
    """How many of the release's experts a share of the free memory holds; at least those of one row."""
    text = config.text
    most = int(MEMORY_SHARE * free) // ModelWork(config).expert_bytes
    return max(text.num_experts_per_tok, min(text.n_routed_experts, most))


def measure_layers(
    kinds: Sequence[Kind],
    steps: Sequence[Step],
    threads: Sequence[int],
    seconds: float,
    experts: int,
    layout: Layout,
    progress: Callable[[Reached], None] = lambda reached: None,
) -> list[Reached]:
    """Time each step through the layers of each kind for about ``seconds`` seconds with each number of threads.

    Args:
        experts: routed experts of a layer; the release has 384.
        layout: of the weights.
        progress: is called after each measurement.
    """
    bench = LayerBench.build(layers_config(experts, ENGRAM_ROWS), layout)
    found = []
    for step in steps:
        cache = filled_cache(bench.config, step.shape)
        for kind in kinds:
            case = bench.case(kind, step, cache)
            for count in threads:
                with using_threads(count):
                    found.append(measure(case, seconds))
                progress(found[-1])
    return settle(found)
