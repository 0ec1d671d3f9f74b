"""Parts of a plan that do not fit together, or are none at all, are refused by name."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from di_kernels import _native
from di_kernels.ops.linear import LinearWeight
from di_kernels.plan import ModelPlan
from di_model.checkpoint import load_checkpoint
from di_model.engram_tables import derive_engram
from di_model.model import Model
from di_model.native import model_part
from di_model.numerics import Numerics
from di_model.testing import write_checkpoint


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A whole model as parts of a plan."""
    tiny = load_checkpoint(write_checkpoint(tmp_path_factory.mktemp("tiny"), seed=6))
    engram = derive_engram(tiny.config, tiny.path)
    return model_part(Model(tiny.config, tiny.weights, engram, Numerics.RELEASE, 65))


@pytest.mark.parametrize("name", ["index_keys", "indexer"])
def test_index_vectors_narrower_than_the_rope_table_are_refused(part: Any, name: str) -> None:
    layers = list(part.layers)
    place = 4 if name == "indexer" else 3
    attention = layers[place].attention
    wide = replace(attention, window=replace(attention.window, rope=torch.zeros(65, 32)))
    keys, indexer = attention.index_keys, attention.indexer
    if name == "index_keys":
        assert keys is not None
        weight = LinearWeight.dense(torch.zeros(16, 32, dtype=torch.bfloat16))
        wide = replace(wide, index_keys=replace(keys, wk=weight, norm=torch.ones(16)), indexer=None)
    else:
        assert indexer is not None
        wq_b = replace(
            indexer.wq_b,
            weight=LinearWeight.dense(torch.zeros(indexer.heads * 16, indexer.wq_b.weight.shape[1])),
        )
        wide = replace(wide, indexer=replace(indexer, dim=16, wq_b=wq_b))
    layers[place] = replace(layers[place], attention=wide)
    with pytest.raises(ValueError, match=rf"attention.{name} is narrower than the rope table"):
        ModelPlan(replace(part, layers=tuple(layers)))


def test_index_queries_must_hold_whole_groups(part: Any) -> None:
    layers = list(part.layers)
    attention = layers[4].attention
    indexer = attention.indexer
    assert indexer is not None
    weight = LinearWeight.dense(torch.zeros(indexer.heads * 16, indexer.wq_b.weight.shape[1]))
    narrow = replace(indexer, dim=16, wq_b=replace(indexer.wq_b, weight=weight))
    layers[4] = replace(layers[4], attention=replace(attention, indexer=narrow))
    with pytest.raises(ValueError, match=r"attention.indexer must hold whole groups of 32"):
        ModelPlan(replace(part, layers=tuple(layers)))


@pytest.mark.parametrize(("feature", "message"), [(0, "a draft feature twice"), (60, "beyond their number")])
def test_draft_features_have_places_of_their_own(part: Any, feature: int, message: str) -> None:
    """A place that no layer fills would be read as it was left."""
    layers = [
        layer if layer.draft_feature is None else replace(layer, draft_feature=feature)
        for layer in part.layers
    ]
    assert sum(layer.draft_feature is not None for layer in layers) > 1
    with pytest.raises(ValueError, match=message):
        ModelPlan(replace(part, layers=tuple(layers)))


@pytest.mark.parametrize("nothing", [None, 3])
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("spec", "spec "),
        ("head", r"spec\.head "),
        ("layers", r"spec\.layers "),
        ("attention", r"spec\.layers\[2\]\.attention "),
        ("layer", r"spec\.layers\[2\] "),
    ],
)
def test_no_part_in_the_place_of_one_is_named(part: Any, name: str, place: str, nothing: Any) -> None:
    layers: list[Any] = list(part.layers)
    broken: Any = nothing
    if name in ("head", "layers"):
        broken = replace(part, **{name: nothing})
    elif name != "spec":
        layers[2] = nothing if name == "layer" else replace(layers[2], attention=nothing)
        broken = replace(part, layers=tuple(layers))
    with pytest.raises(TypeError, match=place) as caught:
        _native.ModelPlan(broken)
    assert type(nothing).__name__ in str(caught.value)


@pytest.mark.parametrize(("name", "place"), [(None, "caches "), ("layers", r"caches\.layers ")])
@pytest.mark.parametrize("nothing", [None, 3])
def test_no_caches_in_the_place_of_some_are_named(
    part: Any, name: str | None, place: str, nothing: Any
) -> None:
    caches = nothing if name is None else caches_with(name, nothing)
    with pytest.raises(TypeError, match=place):
        _native.CachedPlan(_native.ModelPlan(part), caches)


def caches_with(name: str, value: Any) -> SimpleNamespace:
    sizes = ("block_size", "blocks", "slots", "window", "window_cells", "compress_cells")
    return SimpleNamespace(**dict.fromkeys(sizes, 8), **{name: value})
