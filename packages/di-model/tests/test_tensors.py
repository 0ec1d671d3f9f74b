"""The tensor inventory against the released listing, and its rules on other sizes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from di_model.config import ModelConfig
from di_model.plan import read_listing
from di_model.tensors import Part, expected_tensors, is_draft_tensor, is_ignored_tensor
from di_model.testing import tiny_config


def parse(**text: object) -> ModelConfig:
    return ModelConfig.from_dict(tiny_config(text=text))


def test_released_inventory_is_the_released_listing(released: Path, released_config: ModelConfig) -> None:
    expected = {(spec.name, spec.dtype, spec.shape) for spec in expected_tensors(released_config).values()}
    listed = {(row.name, row.dtype, row.shape) for row in read_listing(released / "tensors.tsv.gz")}
    assert len(listed) == 96_085
    assert expected == listed


def test_released_totals(released_config: ModelConfig) -> None:
    """Checkpoint spec, 4.9."""
    specs = expected_tensors(released_config).values()
    nbytes: Counter[str] = Counter()
    for spec in specs:
        nbytes[spec.dtype] += spec.nbytes
    assert Counter(spec.dtype for spec in specs) == {
        "I8": 47_232,
        "F8_E4M3": 357,
        "F8_E8M0": 47_589,
        "BF16": 520,
        "F32": 387,
    }
    assert nbytes == {
        "I8": 278_585_671_680,
        "F8_E4M3": 204_015_223_296,
        "F8_E8M0": 23_563_015_184,
        "BF16": 3_952_883_712,
        "F32": 169_229_128,
    }
    assert nbytes.total() == 510_286_023_000


def test_bf16_form_has_the_same_weights_without_scales() -> None:
    quantized = expected_tensors(parse())
    plain = expected_tensors(ModelConfig.from_dict(tiny_config(quantized=False)))
    assert set(plain) == {name for name, spec in quantized.items() if spec.dtype != "F8_E8M0"}
    assert {spec.dtype for spec in plain.values()} == {"BF16", "F32"}
    assert plain["layers.0.ffn.experts.0.w2.weight"].shape == (64, 32)
    assert quantized["layers.0.ffn.experts.0.w2.weight"].shape == (64, 16)
    for name, spec in plain.items():
        assert spec.parameters == quantized[name].parameters


def test_no_draft_model() -> None:
    config = parse(num_nextn_predict_layers=0, compress_ratios=[0, 2, 2, 1, 1, 1])
    assert not any(is_draft_tensor(name) for name in expected_tensors(config))


def test_one_draft_layer_is_first_and_last() -> None:
    config = parse(num_nextn_predict_layers=1, compress_ratios=[0, 2, 2, 1, 1, 1, 0])
    names = set(expected_tensors(config))
    assert {"mtp.0.main_proj.weight", "mtp.0.norm.weight", "mtp.0.markov_head.head.weight"} <= names
    assert not any(name.startswith("mtp.1") for name in names)


def test_gate_only_where_pairs_are_pooled() -> None:
    names = expected_tensors(parse())
    assert "layers.1.attn.compressor.wgate.weight" in names
    assert "layers.3.attn.compressor.wkv.weight" in names
    assert "layers.3.attn.compressor.wgate.weight" not in names


def test_index_keys_follow_their_own_list() -> None:
    names = expected_tensors(parse(index_k_source_layer_ids=[1, 3, 4]))
    assert "layers.4.attn.indexer.wk.weight" in names
    assert "layers.4.attn.compressor.wkv.weight" not in names
    assert "layers.4.attn.indexer.wk.weight" not in expected_tensors(parse())


def test_more_shared_experts_widen_the_shared_mlp() -> None:
    specs = expected_tensors(parse(n_shared_experts=3))
    assert specs["layers.0.ffn.shared_experts.w1.weight"].shape == (96, 64)
    assert specs["layers.0.ffn.shared_experts.w2.scale"].shape == (2, 3)


def test_draft_layers_count_on_from_the_backbone() -> None:
    specs = expected_tensors(parse())
    assert specs["mtp.1.norm.weight"].layer == 7
    assert specs["mtp.0.main_proj.weight"].part is Part.DRAFT_HEAD
    assert specs["embed.weight"].layer is None


def test_tied_copies_in_draft_layers_are_ignored() -> None:
    assert is_ignored_tensor("mtp.2.embed.weight")
    assert is_ignored_tensor("mtp.0.head.weight")
    assert not is_ignored_tensor("mtp.2.markov_head.embed.weight")
    assert not is_ignored_tensor("embed.weight")
