"""Counts by part and layer."""

from __future__ import annotations

from di_model.config import ModelConfig
from di_model.summary import Stage, describe_role, summarize
from di_model.tensors import Part
from di_model.testing import random_tensors, tiny_config


def test_released_counts(released_config: ModelConfig) -> None:
    summary = summarize(released_config)
    assert summary.total.tensors == 96_085
    assert summary.total.nbytes == 510_286_023_000
    assert len(summary.layers) == 43
    assert summary.layers[-1].name == "mtp.2"
    parts = {(item.stage, item.part): item.count for item in summary.parts}
    assert parts[Stage.BACKBONE, Part.EXPERTS].parameters == 40 * 384 * 3 * 5120 * 2304
    assert parts[Stage.DRAFT, Part.EXPERTS].parameters == 3 * 128 * 3 * 5120 * 2304
    assert parts[Stage.BACKBONE, Part.ENGRAM_TABLE].parameters == (384_006_168 + 384_016_682) * 256
    assert parts[Stage.BACKBONE, Part.ENGRAM_TABLE].nbytes == (384_006_168 + 384_016_682) * 264
    assert parts[Stage.BACKBONE, Part.EMBEDDING].parameters == 129_280 * 5120
    assert dict(summary.dtypes)["F8_E8M0"].parameters == 0


def test_parts_and_dtypes_add_up_to_the_total() -> None:
    summary = summarize(ModelConfig.from_dict(tiny_config()))
    for counts in ([item.count for item in summary.parts], [count for _, count in summary.dtypes]):
        assert sum(count.tensors for count in counts) == summary.total.tensors
        assert sum(count.parameters for count in counts) == summary.total.parameters
        assert sum(count.nbytes for count in counts) == summary.total.nbytes


def test_counts_are_those_of_the_tensors() -> None:
    for quantized in (True, False):
        config = ModelConfig.from_dict(tiny_config(quantized=quantized))
        tensors = random_tensors(config)
        summary = summarize(config)
        assert summary.total.nbytes == sum(tensor.nbytes for tensor in tensors.values())
        layer = [tensor.nbytes for name, tensor in tensors.items() if name.startswith("layers.2.")]
        assert summary.layers[2].count.nbytes == sum(layer)
        assert summary.layers[2].count.tensors == len(layer)
        if not quantized:
            assert summary.total.parameters == sum(tensor.numel() for tensor in tensors.values())


def test_storage_form_does_not_change_the_number_of_parameters() -> None:
    quantized, plain = (summarize(ModelConfig.from_dict(tiny_config(quantized=q))) for q in (True, False))
    assert quantized.total.parameters == plain.total.parameters


def test_roles_in_words(released_config: ModelConfig) -> None:
    layers = released_config.text.layers
    assert describe_role(layers[0]) == ()
    assert describe_role(layers[1]) == ("Engram 0",)
    assert describe_role(layers[3]) == ("ratio 2", "KV of 2", "top-k of 2")
    assert describe_role(layers[20]) == (
        "ratio 1",
        "KV source",
        "index source",
        "own index keys",
        "candidate source",
        "consumer",
    )
    assert describe_role(layers[36]) == (
        "ratio 1",
        "KV of 20",
        "index source",
        "index keys of 20",
        "candidates of 20",
        "consumer",
    )
    assert describe_role(layers[37])[-1] == "draft feature 0"
