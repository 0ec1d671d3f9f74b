"""Configuration: what is read, what is refused and in which words, and which roles follow from the lists."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from di_model.config import (
    AnotherModelError,
    ConfigError,
    MissingKeysError,
    ModelConfig,
    TextConfig,
    UnreadableConfigError,
    YarnConfig,
)
from di_model.testing import tiny_config
from hypothesis import given
from hypothesis import strategies as st


def changed(section: str | None, **values: Any) -> dict[str, Any]:
    config = copy.deepcopy(tiny_config())
    (config if section is None else config[section]).update(values)
    return config


def text(**values: Any) -> TextConfig:
    return ModelConfig.from_dict(tiny_config(text=values)).text


def test_released_configuration(released_config: ModelConfig) -> None:
    config = released_config
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (0, 1, 2)
    assert config.image_token_id == 129264
    assert config.tokenizer_compatibility == "release"
    assert config.quantization is not None
    assert config.quantization.weight_block_size == (32, 32)
    assert config.vision.max_wh_ratio is None
    assert (config.text.hidden_size, config.text.head_dim, config.text.n_routed_experts) == (5120, 512, 384)
    assert config.text.rms_norm_eps == 1e-20
    assert config.text.rope_scaling == YarnConfig(16.0, 32.0, 1.0, 65536)
    assert config.text.index_k_source_layer_ids == (2, 8, 14, 20)
    assert config.text.use_fp4_sparse_kv
    assert config.text.consumer_start == 20
    assert len(config.text.draft_layers) == 3


def test_released_roles(released_config: ModelConfig) -> None:
    """The tables of checkpoint spec 2.4 and attention spec 1.3."""
    layers = released_config.text.layers
    assert [r.ratio for r in layers] == [0] * 2 + [2] * 18 + [1] * 20
    assert [r.kv_source for r in layers] == [None] * 2 + [2] * 6 + [8] * 6 + [14] * 6 + [20] * 20
    assert [r.index_k_source for r in layers] == [r.kv_source for r in layers]
    sources = [None] * 2 + [2] * 6 + [8] * 6 + [14] * 6 + [20] * 4 + [24] * 4 + [28] * 4 + [32] * 4 + [36] * 4
    assert [r.index_source for r in layers] == sources
    assert [r.candidate_source for r in layers] == [None] * 20 + [20] * 20
    assert [r.index for r in layers if r.is_candidate_source] == [20]
    assert [(r.index, r.engram) for r in layers if r.engram is not None] == [(1, 0), (14, 1)]
    features = [(r.index, r.draft_feature) for r in layers if r.draft_feature is not None]
    assert features == [(37, 0), (38, 1), (39, 2)]
    assert [r.index for r in layers if r.is_consumer] == list(range(20, 40))
    assert [r.index for r in layers if r.is_kv_source] == [2, 8, 14, 20]
    assert [r.index for r in layers if r.is_index_source] == [2, 8, 14, 20, 24, 28, 32, 36]
    assert [r.index for r in layers if r.is_index_k_source] == [2, 8, 14, 20]


def test_draft_layers_are_window_only_and_no_consumers() -> None:
    drafts = text(compress_ratios=[0, 2, 2, 1, 1, 1, 1, 2]).draft_layers
    assert [r.index for r in drafts] == [6, 7]
    for role in drafts:
        assert (role.ratio, role.kv_source, role.index_source, role.candidate_source) == (0, None, None, None)
        assert not role.is_consumer
        assert not any((role.is_kv_source, role.is_index_source, role.is_index_k_source))


def test_index_keys_may_have_more_sources_than_kv() -> None:
    layers = text(index_k_source_layer_ids=[1, 3, 4]).layers
    assert [r.index_k_source for r in layers] == [None, 1, 1, 3, 4, 4]
    assert [r.kv_source for r in layers] == [None, 1, 1, 3, 3, 3]


def test_no_candidate_source() -> None:
    assert all(r.candidate_source is None for r in text(candidate_source_layer_id=None).layers)


def test_missing_keys_are_named_at_once() -> None:
    config = tiny_config()
    del config["eos_token_id"]
    del config["text_config"]["hidden_size"]
    del config["text_config"]["candidate_source_layer_id"]
    del config["text_config"]["engram_head_dim"]
    del config["text_config"]["rope_scaling"]["factor"]
    del config["vision_config"]["max_wh_ratio"]
    del config["quantization_config"]["scale_fmt"]
    with pytest.raises(MissingKeysError) as error:
        ModelConfig.from_dict(config)
    assert set(error.value.keys) == {
        "eos_token_id",
        "text_config.hidden_size",
        "text_config.candidate_source_layer_id",
        "text_config.engram_head_dim",
        "text_config.rope_scaling.factor",
        "vision_config.max_wh_ratio",
        "quantization_config.scale_fmt",
    }
    assert all(key in str(error.value) for key in error.value.keys)


def test_every_text_key_without_default_is_required() -> None:
    required = [f.name for f in dataclasses.fields(TextConfig) if f.default is dataclasses.MISSING]
    assert len(required) == 46
    for name in required:
        config = tiny_config()
        del config["text_config"][name]
        with pytest.raises(MissingKeysError, match=rf"1 required key\(s\): text_config.{name}$"):
            ModelConfig.from_dict(config)


def test_optional_keys() -> None:
    config = tiny_config(quantized=False)
    for name in [n for n in config["text_config"] if n.startswith("engram_")] + ["rope_scaling"]:
        del config["text_config"][name]
    for name in ("num_hidden_layers", "num_attention_heads", "intermediate_size", "rope_theta"):
        del config["vision_config"][name]
    config["vision_config"]["hidden_size"] = 1024
    config["an_unknown_key"] = {"ignored": True}
    parsed = ModelConfig.from_dict(config)
    assert parsed.quantization is None
    assert parsed.text.rope_scaling is None
    assert parsed.text.engram_layer_ids == ()
    assert parsed.text.engram_num_embeddings == ()
    vision = parsed.vision
    assert (vision.num_hidden_layers, vision.num_attention_heads, vision.intermediate_size) == (32, 16, 2816)


def test_null_counts_as_absent_where_a_key_is_optional() -> None:
    parsed = ModelConfig.from_dict(changed("text_config", rope_scaling=None, index_k_source_layer_ids=None))
    assert parsed.text.rope_scaling is None
    assert parsed.text.index_k_source_layer_ids == (1, 3)
    assert ModelConfig.from_dict(changed(None, quantization_config=None)).quantization is None


def test_engram_row_counts_follow_from_the_primes_when_absent() -> None:
    config = tiny_config()
    given_rows = tuple(config["text_config"].pop("engram_num_embeddings"))
    assert ModelConfig.from_dict(config).text.engram_num_embeddings == given_rows


@pytest.mark.parametrize(
    ("section", "key", "value", "supported"),
    [
        (None, "architectures", ["LlamaForCausalLM"], "DeepseekV41ForCausalLM"),
        (None, "architectures", ["DeepseekV41ForCausalLM", "Other"], "DeepseekV41ForCausalLM"),
        (None, "model_type", "deepseek_v4", "deepseek_v41"),
        (None, "dtype", "float16", "bfloat16"),
        (None, "tokenizer_compatibility", "other", "'release', 'native'"),
        (None, "image_token_id", 0, "at least 1"),
        (None, "image_token_id", 320, "0..319"),
        (None, "eos_token_id", -1, "at least 0"),
        (None, "text_config", [], "a JSON object"),
        (None, "quantization_config", "fp8", "a JSON object"),
        ("quantization_config", "quant_method", "int8", "only 'fp8'"),
        ("quantization_config", "weight_block_size", [128, 128], "(32, 32)"),
        ("quantization_config", "scale_fmt", "float32", "ue8m0"),
        ("quantization_config", "expert_dtype", "fp8", "fp4"),
        ("quantization_config", "activation_scheme", "static", "dynamic"),
        ("text_config", "num_key_value_heads", 2, "only 1"),
        ("text_config", "hidden_act", "gelu", "only 'silu'"),
        ("text_config", "attention_bias", True, "only False"),
        ("text_config", "attention_dropout", 0.1, "only 0.0"),
        ("text_config", "scoring_func", "softmax", "sqrtsoftplus"),
        ("text_config", "topk_method", "greedy", "noaux_tc"),
        ("text_config", "norm_topk_prob", False, "only True"),
        ("text_config", "hc_shifted", False, "only True"),
        ("text_config", "dspark_target_attn_input", False, "only True"),
        ("text_config", "hidden_size", 65, "multiple of 32"),
        ("text_config", "hidden_size", 0, "multiple of 32"),
        ("text_config", "hidden_size", True, "an integer"),
        ("text_config", "hidden_size", 64.0, "an integer"),
        ("text_config", "hidden_size", "64", "an integer"),
        ("text_config", "head_dim", 48, "multiple of 32"),
        ("text_config", "index_head_dim", 16, "multiple of 32"),
        ("text_config", "qk_rope_head_dim", 15, "multiple of 2"),
        ("text_config", "qk_rope_head_dim", 64, "head_dim"),
        ("text_config", "o_groups", 3, "divisor of num_attention_heads"),
        ("text_config", "sliding_window", 0, "at least 1"),
        ("text_config", "rms_norm_eps", -1.0, "above 0"),
        ("text_config", "rms_norm_eps", math.nan, "finite"),
        ("text_config", "swiglu_limit", math.inf, "finite"),
        ("text_config", "rope_theta", -10000, "above 0"),
        ("text_config", "num_experts_per_tok", 7, "n_routed_experts"),
        ("text_config", "dspark_num_experts_per_tok", 5, "dspark_n_routed_experts"),
        ("text_config", "dspark_noise_token_id", 320, "0..319"),
        ("text_config", "dspark_target_layer_ids", [], "at least one id"),
        ("text_config", "dspark_target_layer_ids", [4, 4], "without repeated"),
        ("text_config", "rope_scaling", {"rope_type": "linear", "factor": 2}, "present"),
        ("text_config", "compress_ratios", 2, "a list"),
        ("text_config", "engram_head_dim", 48, "multiple of 32"),
        ("text_config", "engram_max_ngram_size", 1, "at least 2"),
        ("text_config", "engram_vocab_size", 2**31, "at most"),
        ("text_config", "engram_num_embeddings", [1, 2], "sums of the table primes"),
        ("text_config", "rms_norm_eps", 1e-40, "range of float32"),
        ("text_config", "swiglu_limit", 1e39, "range of float32"),
        ("text_config", "compress_rope_theta", 1, "above 1"),
        ("text_config", "index_topk", 2**31, "at most 2147483647"),
        ("text_config", "hc_sinkhorn_iters", 2**31 - 1, "at most 1000"),
        ("text_config", "n_routed_experts", 2**31 - 1, "at most 4096"),
        ("text_config", "dspark_n_routed_experts", 2**31 - 1, "at most 4096"),
        ("text_config", "num_hidden_layers", 2**31 - 1, "at most 4096"),
        ("text_config", "engram_n_heads", 2**20, "at most 1024"),
        ("vision_config", "num_hidden_layers", 2**31 - 1, "at most 4096"),
        ("vision_config", "min_pixels", 0, "at least 1"),
        ("vision_config", "max_wh_ratio", 0.5, "at least 1"),
        ("vision_config", "num_attention_heads", 3, "divisor"),
    ],
)
def test_unsupported_values(section: str | None, key: str, value: object, supported: str) -> None:
    with pytest.raises(ConfigError) as error:
        ModelConfig.from_dict(changed(section, **{key: value}))
    assert key in error.value.key
    if supported != "present":
        assert supported in error.value.supported
        assert repr(error.value.value) in str(error.value)


@pytest.mark.parametrize(
    ("values", "key", "supported"),
    [
        ({"compress_ratios": [0, 2, 2, 1, 1, 1, 0]}, "compress_ratios", "8 entries"),
        ({"compress_ratios": [0, 4, 4, 1, 1, 1, 0, 0]}, "compress_ratios[1]", "0, 1 or 2"),
        ({"compress_ratios": [0, 2, 2, 2, 2, 2, 0, 0]}, "compress_ratios", "ratio 1"),
        ({"compress_ratios": [0, 2, 0, 1, 1, 1, 0, 0]}, "compress_ratios[2]", "1 or 2 after"),
        ({"compress_ratios": [0, 2, 1, 1, 1, 1, 0, 0]}, "compress_ratios[2]", "kv_source, layer 1"),
        ({"kv_source_layer_ids": [3]}, "kv_source_layer_ids", "first compressed layer, 1"),
        ({"kv_source_layer_ids": []}, "kv_source_layer_ids", "first compressed layer, 1"),
        ({"kv_source_layer_ids": [3, 1]}, "kv_source_layer_ids", "ascending"),
        ({"kv_source_layer_ids": [1, 1, 3]}, "kv_source_layer_ids", "without repeated"),
        ({"kv_source_layer_ids": [1, 6]}, "kv_source_layer_ids[1]", "0..5"),
        ({"kv_source_layer_ids": [1, 3, 4]}, "kv_source_layer_ids", "exactly one source"),
        ({"index_source_layer_ids": [1, 4]}, "index_source_layer_ids", "every id of index_k"),
        ({"index_k_source_layer_ids": [1]}, "index_k_source_layer_ids", "every id of kv_source"),
        ({"candidate_source_layer_id": 5}, "candidate_source_layer_id", "one of index_source_layer_ids"),
        ({"candidate_source_layer_id": 1}, "candidate_source_layer_id", "no longer changes"),
        ({"engram_layer_ids": [0, 6]}, "engram_layer_ids[1]", "0..5"),
        ({"engram_layer_ids": [0, -1]}, "engram_layer_ids[1]", "0..5"),
        ({"dspark_target_layer_ids": [5, 6]}, "dspark_target_layer_ids[1]", "0..5"),
    ],
)
def test_contradicting_topologies(values: dict[str, Any], key: str, supported: str) -> None:
    with pytest.raises(ConfigError) as error:
        text(**values)
    assert error.value.key == f"text_config.{key}"
    assert supported in error.value.supported


def test_second_kv_source_after_the_boundary_is_refused() -> None:
    with pytest.raises(ConfigError, match="exactly one source from the first layer of ratio 1"):
        text(kv_source_layer_ids=[1, 3, 4], index_source_layer_ids=[1, 3, 4])


def test_wrong_rope_type() -> None:
    scaling = {**tiny_config()["text_config"]["rope_scaling"], "rope_type": "linear"}
    with pytest.raises(ConfigError, match="rope_type = 'linear' is not supported; supported: only 'yarn'"):
        ModelConfig.from_dict(changed("text_config", rope_scaling=scaling))


def test_instances_are_checked_however_they_are_made(released_config: ModelConfig) -> None:
    with pytest.raises(ConfigError, match="sliding_window"):
        dataclasses.replace(released_config.text, sliding_window=0)
    with pytest.raises(ConfigError, match="candidate_source_layer_id"):
        dataclasses.replace(released_config.text, candidate_source_layer_id=3)


@pytest.mark.parametrize("name", ["factor", "beta_fast", "beta_slow"])
@pytest.mark.parametrize("value", [1e308, 5e-324])
def test_scaling_beyond_float32(name: str, value: float) -> None:
    scaling = {**tiny_config()["text_config"]["rope_scaling"], name: value}
    with pytest.raises(ConfigError, match=rf"rope_scaling\.{name}"):
        ModelConfig.from_dict(changed("text_config", rope_scaling=scaling))


def test_an_integer_that_no_float_holds() -> None:
    with pytest.raises(ConfigError, match=r"rope_theta = 1000.*a finite number"):
        text(rope_theta=10**400)


def test_a_key_that_is_named_twice(tmp_path: Path) -> None:
    content = json.dumps(tiny_config()).replace('"head_dim": 32', '"head_dim": 64, "head_dim": 32', 1)
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"head_dim = 32 .*named once; it also has the value 64"):
        ModelConfig.from_file(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"architectures": [}', "\ud800", "9" * 5000])
def test_unreadable_files(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(ConfigError, match="JSON"):
        ModelConfig.from_file(tmp_path)


def test_a_file_that_is_not_json_is_told_as_such(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text("# A model")
    with pytest.raises(UnreadableConfigError) as error:
        ModelConfig.from_file(file)
    assert str(error.value).startswith(f"{file} is not JSON: Expecting value")


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (
            {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
            "architectures = ['LlamaForCausalLM']",
        ),
        ({"model_type": "llama"}, "model_type = 'llama'"),
        ({"name": "a package"}, "architectures = None"),
        ({**tiny_config(), "model_type": "deepseek_v4"}, "model_type = 'deepseek_v4'"),
    ],
)
def test_another_model_is_told_as_such(raw: dict[str, Any], found: str) -> None:
    with pytest.raises(AnotherModelError) as error:
        ModelConfig.from_dict(raw)
    assert str(error.value).startswith(
        f"not a DeepSeek-V4.1 model: {found} is not supported; supported: only"
    )


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        ModelConfig.from_file(tmp_path)


def test_file_or_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config()))
    assert ModelConfig.from_file(tmp_path) == ModelConfig.from_file(tmp_path / "config.json")


@pytest.mark.parametrize("preset", ["micro", "w128", "heads"])
def test_presets_of_the_golden_values(make_tiny: Callable[..., Path], preset: str) -> None:
    config = ModelConfig.from_file(make_tiny(preset))
    assert config.text.layers[-1].is_consumer
    assert config.text.layers[-1].draft_feature == 2


@st.composite
def topologies(draw: st.DrawFn) -> dict[str, Any]:
    """Valid lists: windows first, then ratio 2, then one ratio-1 source for the rest; each list refines the last."""
    windows, pairs, singles = draw(st.integers(0, 3)), draw(st.integers(0, 6)), draw(st.integers(1, 6))
    layers, boundary = windows + pairs + singles, windows + pairs
    before = st.sets(st.integers(windows, boundary - 1)) if pairs else st.just(set())
    kv = draw(before) | ({windows} if pairs else set()) | {boundary}
    index_k = kv | draw(st.sets(st.integers(windows, layers - 1)))
    index = index_k | draw(st.sets(st.integers(windows, layers - 1)))
    late = sorted(layer for layer in index if layer >= boundary)
    return {
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": 1,
        "compress_ratios": [0] * windows + [2] * pairs + [1] * singles + [0],
        "kv_source_layer_ids": sorted(kv),
        "index_k_source_layer_ids": sorted(index_k),
        "index_source_layer_ids": sorted(index),
        "candidate_source_layer_id": draw(st.sampled_from([None, *late])),
        "engram_layer_ids": [],
        "dspark_target_layer_ids": [layers - 1],
    }


@given(topologies())
def test_every_valid_topology_gives_the_nearest_sources(values: dict[str, Any]) -> None:
    for role in text(**values).layers:
        for name, kind in (
            ("kv_source_layer_ids", "kv_source"),
            ("index_k_source_layer_ids", "index_k_source"),
            ("index_source_layer_ids", "index_source"),
        ):
            earlier = [layer for layer in values[name] if layer <= role.index]
            assert getattr(role, kind) == (max(earlier) if earlier else None)
            assert (getattr(role, kind) is None) == (role.ratio == 0)
        candidate = values["candidate_source_layer_id"]
        restricted = candidate is not None and role.index >= candidate
        assert role.candidate_source == (candidate if restricted else None)
