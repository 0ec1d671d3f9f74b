"""An exported nano is a checkpoint like a released one: it loads, fits its size and keeps its values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from di_kernels.reference.linear import dequantize
from di_model.checkpoint import load_checkpoint
from di_model.config import ModelConfig
from di_model.tensors import Part, TensorSpec
from di_model.tokenizer import Tokenizer
from tokenizers import Tokenizer as RawTokenizer
from torch import Tensor

from examples.nano.config import nano_config
from examples.nano.export import export
from examples.nano.parameters import initial_parameters
from examples.nano.quantize import quantize, restore
from examples.nano.tokenizer import train_tokenizer

LARGEST = 12_000_000
TOKENIZER_BYTES = 280_000
"""Room for the full tokenizer; the one of these tests has seen little text."""


@pytest.fixture(scope="module")
def tokenizer() -> RawTokenizer:
    return train_tokenizer(["It is a truth universally acknowledged, that a test needs some text. " * 20])


@pytest.fixture(scope="module")
def parameters(tokenizer: RawTokenizer) -> dict[str, Tensor]:
    return initial_parameters(ModelConfig.from_dict(nano_config(tokenizer, quantized=False)), seed=0)


@pytest.fixture(scope="module")
def directory(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: RawTokenizer, parameters: dict[str, Tensor]
) -> Path:
    path = tmp_path_factory.mktemp("nano")
    export(path, tokenizer, parameters)
    return path


def test_it_fits_its_size(directory: Path) -> None:
    files = {file.name: file.stat().st_size for file in directory.iterdir()}
    assert sum(files.values()) - files["tokenizer.json"] + TOKENIZER_BYTES <= LARGEST


def test_it_loads_and_keeps_its_values(directory: Path, parameters: dict[str, Tensor]) -> None:
    checkpoint = load_checkpoint(directory)
    Tokenizer.from_file(directory, checkpoint.config)
    layer = checkpoint.weights.layers[1]
    assert layer.attn.indexer is not None
    assert layer.engram is not None
    pairs = {
        "layers.1.attn.wq_b.weight": (dequantize(layer.attn.wq_b), 0.04),
        "layers.1.ffn.experts.3.w2.weight": (dequantize(layer.moe.experts.w2[3]), 0.13),
        "layers.1.ffn.shared_experts.w1.weight": (dequantize(layer.moe.shared.w1[0]), 0.04),
        "layers.1.attn.indexer.wk.weight": (dequantize(layer.attn.indexer.wk), 0.004),  # type: ignore[arg-type]
        "head.weight": (dequantize(checkpoint.weights.head), 0.004),
        "layers.1.hc_ffn_base": (layer.hc_ffn.base, 0.0),
    }
    for name, (stored, error) in pairs.items():
        original = parameters[name].detach()
        assert (stored - original).norm() <= error * original.norm(), name


def test_configuration_has_every_part_within_limits_that_matter(tokenizer: RawTokenizer) -> None:
    text = ModelConfig.from_dict(nano_config(tokenizer)).text
    assert {role.ratio for role in text.layers} == {0, 1, 2}
    assert any(role.is_consumer for role in text.layers)
    assert any(role.kv_source not in (None, role.index) for role in text.layers)
    assert any(role.candidate_source not in (None, role.index) for role in text.layers)
    assert text.engram_layer_ids
    assert text.num_nextn_predict_layers == 2
    assert text.index_topk * 8 <= text.max_position_embeddings
    blocks = text.max_position_embeddings // text.candidate_block_size
    assert text.candidate_topk_blocks * 8 <= blocks
    assert text.candidate_topk_blocks * text.candidate_block_size >= text.index_topk


def test_powers_of_two_are_stored_exactly() -> None:
    values = (2.0 ** torch.arange(-3, 3).float()).repeat(32, 16)[:, :96]
    for dtype, shape, part in (
        ("F8_E4M3", (32, 96), Part.ATTENTION),
        ("F8_E4M3", (32, 96), Part.ENGRAM_TABLE),
    ):
        stored = quantize(TensorSpec("a.weight", dtype, shape, part, 0, 0), values)
        scale = stored["a.scale"].float()
        rows = 32 // len(scale)
        full = scale.repeat_interleave(rows, 0).repeat_interleave(32, 1)
        assert torch.equal(stored["a.weight"].float() * full, values)


@pytest.mark.parametrize(
    ("dtype", "part", "error"),
    [
        ("F32", Part.HYPER, 0.0),
        ("BF16", Part.HEAD, 0.004),
        ("F8_E4M3", Part.ATTENTION, 0.04),
        ("F8_E4M3", Part.ENGRAM_TABLE, 0.04),
        ("I8", Part.EXPERTS, 0.13),
    ],
)
def test_restored_values_are_near_and_quantize_to_themselves(dtype: str, part: Part, error: float) -> None:
    values = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    spec = TensorSpec("a.weight", dtype, (64, 96), part, 0, 0)
    stored = quantize(spec, values)
    once = restore(spec, stored)
    assert (once - values).norm() <= error * values.norm()
    assert torch.equal(restore(spec, quantize(spec, once)), once)


def test_scales_are_no_weights() -> None:
    spec = TensorSpec("a.scale", "F8_E8M0", (1, 1), Part.ATTENTION, 0, 0)
    with pytest.raises(ValueError, match=r"a\.scale is of type F8_E8M0"):
        quantize(spec, torch.ones(1, 1))


def test_parameters_are_those_of_an_unquantized_configuration(tokenizer: RawTokenizer) -> None:
    with pytest.raises(ValueError, match="unquantized"):
        initial_parameters(ModelConfig.from_dict(nano_config(tokenizer)), seed=0)
