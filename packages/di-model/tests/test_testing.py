"""The writer of random checkpoints: complete, reproducible, and free in its sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from di_model.checkpoint import load_checkpoint
from di_model.config import ConfigError, ModelConfig
from di_model.engram_tables import derive_engram
from di_model.testing import random_tensors, tiny_config, tiny_tokenizer, write_checkpoint
from di_model.tokenizer import Tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def tiny(quantized: bool = True) -> ModelConfig:
    return ModelConfig.from_dict(tiny_config(quantized=quantized))


def scale_of(byte: torch.Tensor) -> torch.Tensor:
    return torch.pow(2.0, byte.view(torch.uint8).double() - 127)


def test_default_model_has_every_role() -> None:
    roles = tiny().text.layers
    for predicate in (
        "is_kv_source",
        "is_index_source",
        "is_index_k_source",
        "is_candidate_source",
        "is_consumer",
    ):
        assert any(getattr(role, predicate) for role in roles)
    assert any(role.ratio == 0 for role in roles)
    assert any(role.is_index_source and not role.is_index_k_source for role in roles)
    assert any(role.ratio and not role.is_index_source for role in roles)
    assert any(role.engram is not None for role in roles)
    assert any(role.draft_feature is not None for role in roles)


def test_everything_a_model_directory_needs(checkpoint: Path) -> None:
    opened = load_checkpoint(checkpoint)
    tokenizer = Tokenizer.from_file(checkpoint, opened.config)
    data = derive_engram(opened.config, checkpoint)
    assert data is not None
    assert tokenizer.decode(tokenizer.encode("The world")) == "The world"
    for table, position in zip(data.tables, (0, 2), strict=True):
        engram = opened.weights.layers[position].engram
        assert engram is not None
        assert len(engram.table.data) == int(table.primes.sum())


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    first, second, other = (
        write_checkpoint(tmp_path / str(i), seed=seed) for i, seed in enumerate((5, 5, 6))
    )
    files = sorted(path.name for path in first.iterdir())
    assert "model-00003-of-00003.safetensors" in files
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in files)
    assert any((first / name).read_bytes() != (other / name).read_bytes() for name in files)


def test_index_of_the_shards(checkpoint: Path) -> None:
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {path.name for path in checkpoint.glob("*.safetensors")}
    assert index["metadata"]["total_size"] == load_checkpoint(checkpoint).plan.num_bytes


def test_quantized_and_plain_form_have_equal_values() -> None:
    quantized, plain = random_tensors(tiny(), seed=2), random_tensors(tiny(False), seed=2)
    assert set(plain) == {name for name in quantized if not name.endswith(".scale")}
    fp8, table, fp4 = "layers.0.attn.wq_b", "layers.0.engram.embed", "mtp.1.ffn.experts.3.w2"
    scale = scale_of(quantized[f"{fp8}.scale"]).repeat_interleave(32, 0).repeat_interleave(32, 1)
    assert torch.equal(quantized[f"{fp8}.weight"].double() * scale, plain[f"{fp8}.weight"].double())
    scale = scale_of(quantized[f"{table}.scale"]).repeat_interleave(32, 1)
    assert torch.equal(quantized[f"{table}.weight"].double() * scale, plain[f"{table}.weight"].double())
    packed = quantized[f"{fp4}.weight"].view(torch.uint8).long()
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1)
    magnitude = torch.tensor(E2M1, dtype=torch.float64)[codes & 7] * (1 - 2 * (codes >> 3))
    scale = scale_of(quantized[f"{fp4}.scale"]).repeat_interleave(32, 1)
    assert torch.equal(magnitude * scale, plain[f"{fp4}.weight"].double())


def test_codes_use_the_range_of_their_formats() -> None:
    tensors = random_tensors(tiny())
    weight = tensors["layers.0.attn.wq_b.weight"].float()
    assert weight.isfinite().all()
    assert weight.abs().max() > 224
    packed = tensors["layers.0.ffn.experts.0.w1.weight"].view(torch.uint8)
    assert len(set((packed & 15).flatten().tolist())) == 16
    assert len(tensors["layers.0.attn.wq_b.scale"].view(torch.uint8).unique()) > 1


def test_all_values_are_finite() -> None:
    for name, tensor in random_tensors(tiny(False)).items():
        assert tensor.float().isfinite().all(), name


def test_configurations_do_not_share_state() -> None:
    first = tiny_config()
    first["text_config"]["rope_scaling"]["factor"] = 99
    first["quantization_config"]["weight_block_size"].append(1)
    assert tiny_config()["text_config"]["rope_scaling"]["factor"] == 4
    assert tiny_config()["quantization_config"]["weight_block_size"] == [32, 32]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="num_shards = -1"):
        write_checkpoint(tmp_path, num_shards=-1)
    with pytest.raises(ConfigError, match="hidden_size = 33"):
        write_checkpoint(tmp_path, tiny_config(text={"hidden_size": 33}))
    with pytest.raises(ValueError, match="vocab_size = 100 is too small"):
        tiny_tokenizer(100)


@pytest.mark.parametrize("vocab_size", [267, 268, 320, 600])
def test_tokenizer_of_any_size(vocab_size: int) -> None:
    tokenizer = tiny_tokenizer(vocab_size)
    assert tokenizer.get_vocab_size() == vocab_size
    assert sorted(tokenizer.get_vocab().values()) == list(range(vocab_size))
    assert tokenizer.decode(tokenizer.encode("the é 文 end").ids) == "the é 文 end"


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes that only the number formats restrict."""
    block = st.sampled_from([32, 64, 96])
    groups, experts = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    return {
        "vocab_size": draw(st.integers(267, 400)),
        "hidden_size": draw(block),
        "head_dim": draw(block),
        "index_head_dim": draw(block),
        "qk_rope_head_dim": draw(st.sampled_from([2, 8, 32])),
        "q_lora_rank": draw(block),
        "o_lora_rank": draw(block),
        "o_groups": groups,
        "num_attention_heads": groups * draw(st.integers(1, 3)),
        "index_n_heads": draw(st.integers(1, 40)),
        "moe_intermediate_size": draw(block),
        "n_routed_experts": experts,
        "num_experts_per_tok": draw(st.integers(1, experts)),
        "n_shared_experts": draw(st.integers(1, 2)),
        "hc_mult": draw(st.integers(1, 5)),
        "sliding_window": draw(st.integers(1, 200)),
        "candidate_topk_blocks": draw(st.integers(1, 5)),
        "candidate_block_size": draw(st.integers(1, 5)),
        "engram_n_heads": draw(st.integers(1, 3)),
        "engram_max_ngram_size": draw(st.integers(2, 5)),
        "engram_vocab_size": draw(st.integers(2, 50)),
        "dspark_markov_rank": draw(st.integers(1, 40)),
    }


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=sizes(), quantized=st.booleans(), num_shards=st.integers(0, 4))
def test_any_sizes_that_the_formats_allow(
    tmp_path_factory: pytest.TempPathFactory, text: dict[str, Any], quantized: bool, num_shards: int
) -> None:
    raw = tiny_config(quantized=quantized, text=text)
    directory = write_checkpoint(tmp_path_factory.mktemp("sizes"), raw, num_shards=num_shards)
    checkpoint = load_checkpoint(directory)
    assert checkpoint.weights.embed.shape == (text["vocab_size"], text["hidden_size"])
    assert derive_engram(checkpoint.config, directory) is not None
