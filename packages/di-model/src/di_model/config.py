"""Configuration of a DeepSeek-V4.1 model: ``config.json`` as typed, validated, frozen dataclasses.

Field names are the JSON keys. Sizes are free apart from the multiples that the number formats need;
everything that would change the mathematics is held to the released value. Source: checkpoint spec, 2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from di_model.config_fields import (
    ANY,
    ASCENDING,
    DISTINCT,
    NON_NEGATIVE,
    POSITIVE,
    AnotherModelError,
    ConfigError,
    MissingKeysError,
    Rule,
    UnreadableConfigError,
    as_object,
    at_least,
    between,
    check_rules,
    each,
    exactly,
    key,
    missing_keys,
    multiple_of,
    one_of,
    read_section,
)
from di_model.primes import engram_primes
from di_model.topology import LayerRole, SharingLists, derive_draft_roles, derive_roles

__all__ = [
    "AnotherModelError",
    "ConfigError",
    "LayerRole",
    "MissingKeysError",
    "ModelConfig",
    "QuantizationConfig",
    "TextConfig",
    "UnreadableConfigError",
    "VisionConfig",
    "YarnConfig",
]

ARCHITECTURE = "DeepseekV41ForCausalLM"
MODEL_TYPE = "deepseek_v41"
SCALE_BLOCK = 32
"""Elements that share one power-of-two scale, in weights, activations and caches."""
MAX_TABLE_ROWS = 2**31 - 1
"""Rows of one Engram table; row numbers are int32 in the released code."""

_BLOCKS = multiple_of(SCALE_BLOCK)
_EVEN = multiple_of(2)
_COUNT = at_least(1)
_FEW = between(1, 4096)
"""Counts that multiply the tensors of a checkpoint: above any real model, and quick to refuse when damaged."""
_LAYER_LIST = DISTINCT & ASCENDING


@dataclass(frozen=True)
class YarnConfig:
    """``rope_scaling``: YaRN frequencies of the compressed layers (attention spec, 3.5)."""

    factor: float = key(at_least(1) & POSITIVE)
    beta_fast: float = key(POSITIVE)
    beta_slow: float = key(POSITIVE)
    original_max_position_embeddings: int = key(_COUNT)
    rope_type: str = key(exactly("yarn"), default="yarn")

    def __post_init__(self) -> None:
        check_rules(self, "text_config.rope_scaling")
        if self.beta_fast < self.beta_slow:
            raise ConfigError("text_config.rope_scaling.beta_fast", self.beta_fast, "at least beta_slow")


@dataclass(frozen=True)
class QuantizationConfig:
    """``quantization_config``: FP8 linears in 32x32 blocks, MXFP4 experts, power-of-two scales (spec 2.2)."""

    quant_method: str = key(exactly("fp8"))
    expert_dtype: str = key(exactly("fp4"))
    activation_scheme: str = key(exactly("dynamic"))
    weight_block_size: tuple[int, ...] = key(exactly((SCALE_BLOCK, SCALE_BLOCK)))
    scale_fmt: str = key(exactly("ue8m0"))

    def __post_init__(self) -> None:
        check_rules(self, "quantization_config")


@dataclass(frozen=True)
class VisionConfig:
    """``vision_config``; the four optional keys default to the constants of the release (spec 2.9)."""

    hidden_size: int = key(_COUNT)
    downsample_ratio: int = key(_COUNT)
    patch_size: int = key(_COUNT)
    max_image_tokens: int = key(_COUNT)
    min_pixels: int = key(_COUNT)
    max_wh_ratio: float | None = key(at_least(1))
    num_hidden_layers: int = key(_FEW, default=32)
    num_attention_heads: int = key(_COUNT, default=16)
    intermediate_size: int = key(_COUNT, default=2816)
    rope_theta: float = key(POSITIVE, default=10000.0)

    def __post_init__(self) -> None:
        check_rules(self, "vision_config")
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                "vision_config.num_attention_heads",
                self.num_attention_heads,
                f"a divisor of {self.hidden_size}",
            )


@dataclass(frozen=True)
class TextConfig:
    """``text_config``: backbone, attention sharing, experts, hyper-connections, Engram and draft model.

    The Engram sizes are 0 when ``engram_layer_ids`` is empty. When the file leaves them out,
    ``index_k_source_layer_ids`` is filled from ``kv_source_layer_ids`` and ``engram_num_embeddings`` from the
    table primes.
    """

    vocab_size: int = key(_COUNT)
    hidden_size: int = key(_BLOCKS)
    num_hidden_layers: int = key(_FEW)
    num_attention_heads: int = key(_COUNT)
    num_key_value_heads: int = key(exactly(1))
    head_dim: int = key(_BLOCKS)
    qk_rope_head_dim: int = key(_EVEN)
    q_lora_rank: int = key(_BLOCKS)
    o_lora_rank: int = key(_BLOCKS)
    o_groups: int = key(_COUNT)
    hidden_act: str = key(exactly("silu"))
    attention_bias: bool = key(exactly(False))
    attention_dropout: float = key(exactly(0.0))
    swiglu_limit: float = key(POSITIVE)
    rms_norm_eps: float = key(POSITIVE)
    tie_word_embeddings: bool = key(ANY)
    max_position_embeddings: int = key(_COUNT)
    rope_theta: float = key(POSITIVE)
    compress_rope_theta: float = key(POSITIVE)
    sliding_window: int = key(_COUNT)

    compress_ratios: tuple[int, ...] = key(ANY)
    kv_source_layer_ids: tuple[int, ...] = key(_LAYER_LIST)
    index_source_layer_ids: tuple[int, ...] = key(_LAYER_LIST)
    index_n_heads: int = key(_COUNT)
    index_head_dim: int = key(_BLOCKS)
    index_topk: int = key(_COUNT)
    candidate_source_layer_id: int | None = key(ANY)
    candidate_topk_blocks: int = key(_COUNT)
    candidate_block_size: int = key(_COUNT)

    moe_intermediate_size: int = key(_BLOCKS)
    n_routed_experts: int = key(_FEW)
    n_shared_experts: int = key(_COUNT)
    num_experts_per_tok: int = key(_COUNT)
    scoring_func: str = key(exactly("sqrtsoftplus"))
    topk_method: str = key(exactly("noaux_tc"))
    norm_topk_prob: bool = key(exactly(True))
    routed_scaling_factor: float = key(POSITIVE)

    hc_mult: int = key(_COUNT)
    hc_sinkhorn_iters: int = key(between(1, 1000))
    hc_eps: float = key(POSITIVE)

    dspark_block_size: int = key(_COUNT)
    dspark_noise_token_id: int = key(NON_NEGATIVE)
    dspark_target_layer_ids: tuple[int, ...] = key(Rule("at least one id", bool) & DISTINCT)
    dspark_markov_rank: int = key(_COUNT)
    dspark_n_routed_experts: int = key(_FEW)
    dspark_num_experts_per_tok: int = key(_COUNT)

    num_nextn_predict_layers: int = key(between(0, 4096), default=0)
    rope_scaling: YarnConfig | None = key(ANY, default=None)  # noqa: RUF009  (a field specifier)
    index_k_source_layer_ids: tuple[int, ...] = key(_LAYER_LIST, default=())
    use_fp4_sparse_kv: bool = key(ANY, default=True)
    hc_shifted: bool = key(exactly(True), default=True)
    dspark_target_attn_input: bool = key(exactly(True), default=True)
    engram_layer_ids: tuple[int, ...] = key(DISTINCT, default=())
    engram_max_ngram_size: int = key(NON_NEGATIVE, default=0)
    engram_vocab_size: int = key(NON_NEGATIVE, default=0)
    engram_n_heads: int = key(NON_NEGATIVE, default=0)
    engram_head_dim: int = key(NON_NEGATIVE, default=0)
    engram_pad_token_id: int = key(NON_NEGATIVE, default=0)
    engram_compressed_vocab_size: int | None = key(_COUNT, default=None)
    engram_num_embeddings: tuple[int, ...] = key(each(_COUNT), default=())

    def __post_init__(self) -> None:
        if not self.index_k_source_layer_ids:
            object.__setattr__(self, "index_k_source_layer_ids", self.kv_source_layer_ids)
        check_rules(self, "text_config")
        _check_attention_sizes(self)
        _check_experts(self)
        _check_token_ids(self)
        _check_engram(self)
        # Roles are derived here once, so that lists which contradict each other never leave this constructor.
        _ = self.layers

    @cached_property
    def layers(self) -> tuple[LayerRole, ...]:
        """Roles of the backbone layers, ``num_hidden_layers`` of them."""
        return derive_roles(self._sharing_lists)

    @cached_property
    def draft_layers(self) -> tuple[LayerRole, ...]:
        """Roles of the draft layers (window only), ``num_nextn_predict_layers`` of them."""
        return derive_draft_roles(self._sharing_lists)

    @cached_property
    def engram_table_sizes(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Prime number of rows of every hash segment, ``[engram layer][order - 2][head]`` (spec 8.1)."""
        return engram_primes(
            len(self.engram_layer_ids),
            self.engram_vocab_size,
            self.engram_max_ngram_size,
            self.engram_n_heads,
        )

    @property
    def consumer_start(self) -> int:
        """First layer of ratio 1, where the producers end (attention spec, 12.1)."""
        return self.compress_ratios.index(1)

    @property
    def shared_intermediate_size(self) -> int:
        """Width of the shared expert."""
        return self.n_shared_experts * self.moe_intermediate_size

    @property
    def engram_features(self) -> int:
        """Width of a gathered Engram row: orders x heads x head width."""
        return (self.engram_max_ngram_size - 1) * self.engram_n_heads * self.engram_head_dim

    @property
    def _sharing_lists(self) -> SharingLists:
        names = SharingLists.__dataclass_fields__
        return SharingLists(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class ModelConfig:
    """A whole ``config.json``."""

    text: TextConfig
    vision: VisionConfig
    quantization: QuantizationConfig | None
    """None: every weight is BF16 in its full logical shape, without scales (spec 2.2)."""
    architectures: tuple[str, ...] = key(exactly((ARCHITECTURE,)))
    model_type: str = key(exactly(MODEL_TYPE))
    dtype: str = key(exactly("bfloat16"))
    bos_token_id: int = key(NON_NEGATIVE)
    eos_token_id: int = key(NON_NEGATIVE)
    pad_token_id: int = key(NON_NEGATIVE)
    image_token_id: int = key(_COUNT)
    tokenizer_compatibility: str = key(one_of("release", "native"), default="release")

    def __post_init__(self) -> None:
        check_rules(self, "")
        for name in ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id"):
            _check_vocabulary(name, getattr(self, name), self.text.vocab_size)

    @staticmethod
    def from_dict(raw: Mapping[str, Any]) -> ModelConfig:
        """Reads the object of a ``config.json``.

        Keys that the model does not use are ignored. Raises AnotherModelError for the configuration of another model,
        MissingKeysError naming every missing key, and ConfigError naming key, value and what is supported for the first
        bad value.
        """
        raw = as_object("config.json", raw)
        _check_model(raw)
        _check_present(raw)
        text, vision = (
            as_object("text_config", raw["text_config"]),
            as_object("vision_config", raw["vision_config"]),
        )
        quantization = raw.get("quantization_config")
        return read_section(
            ModelConfig,
            raw,
            "",
            text=_read_text(text),
            vision=read_section(VisionConfig, vision, "vision_config"),
            quantization=None
            if quantization is None
            else read_section(
                QuantizationConfig, as_object("quantization_config", quantization), "quantization_config"
            ),
        )

    @staticmethod
    def from_file(path: str | Path) -> ModelConfig:
        """Reads ``config.json``, given the file or the directory that holds it.

        Raises FileNotFoundError when there is none, UnreadableConfigError when it is not JSON, and another ConfigError
        when it names a key twice in one object or is not a supported model.
        """
        file = Path(path)
        file = file / "config.json" if file.is_dir() else file
        if not file.is_file():
            raise FileNotFoundError(f"no configuration at {file}")
        try:
            raw = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=_without_repeats)
        except ConfigError:
            raise
        except (ValueError, RecursionError) as error:  # also a number of too many digits
            raise UnreadableConfigError(str(file), str(error)) from error
        return ModelConfig.from_dict(raw)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Of a key with two values, readers take one or the other."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ConfigError(name, value, f"named once; it also has the value {found[name]!r}"[:200])
        found[name] = value
    return found


_ENGRAM_KEYS = (
    "engram_max_ngram_size",
    "engram_vocab_size",
    "engram_n_heads",
    "engram_head_dim",
    "engram_pad_token_id",
)


def _check_model(raw: Mapping[str, Any]) -> None:
    """Another model is told as such, not as a list of the keys that it lacks."""
    named = False
    for name, expected in (("architectures", [ARCHITECTURE]), ("model_type", MODEL_TYPE)):
        if name in raw and raw[name] != expected:
            raise AnotherModelError(name, raw[name], f"only {expected!r}")
        named |= name in raw
    if not named:
        raise AnotherModelError("architectures", None, f"only {[ARCHITECTURE]!r}")


def _check_present(raw: Mapping[str, Any]) -> None:
    """Raises MissingKeysError with the required keys that any part of the configuration lacks."""
    absent = list(missing_keys(ModelConfig, raw, ""))
    for name, cls in (("text_config", TextConfig), ("vision_config", VisionConfig)):
        if name not in raw:
            absent.append(name)
        elif isinstance(raw[name], dict):
            absent += missing_keys(cls, raw[name], name)
    text = raw.get("text_config")
    if isinstance(text, dict) and text.get("engram_layer_ids"):
        absent += [f"text_config.{name}" for name in _ENGRAM_KEYS if name not in text]
    if isinstance(text, dict) and isinstance(text.get("rope_scaling"), dict):
        absent += missing_keys(YarnConfig, text["rope_scaling"], "text_config.rope_scaling")
    if isinstance(raw.get("quantization_config"), dict):
        absent += missing_keys(QuantizationConfig, raw["quantization_config"], "quantization_config")
    if absent:
        raise MissingKeysError(tuple(absent))


def _read_text(raw: Mapping[str, Any]) -> TextConfig:
    """``text_config``; null stands for an absent key where the key is optional."""
    raw = {
        name: value for name, value in raw.items() if value is not None or name == "candidate_source_layer_id"
    }
    scaling = raw.get("rope_scaling")
    name = "text_config.rope_scaling"
    yarn = None if scaling is None else read_section(YarnConfig, as_object(name, scaling), name)
    return read_section(TextConfig, raw, "text_config", rope_scaling=yarn)


def _check_attention_sizes(text: TextConfig) -> None:
    if text.qk_rope_head_dim > min(text.head_dim, text.index_head_dim):
        raise ConfigError(
            "text_config.qk_rope_head_dim",
            text.qk_rope_head_dim,
            f"at most head_dim ({text.head_dim}) and index_head_dim ({text.index_head_dim})",
        )
    # Only with scaling: its blend divides by the logarithm of the base.
    if text.rope_scaling is not None and text.compress_rope_theta <= 1:
        raise ConfigError(
            "text_config.compress_rope_theta", text.compress_rope_theta, "above 1 with rope_scaling"
        )
    if text.num_attention_heads % text.o_groups:
        raise ConfigError(
            "text_config.o_groups",
            text.o_groups,
            f"a divisor of num_attention_heads ({text.num_attention_heads})",
        )


def _check_experts(text: TextConfig) -> None:
    for chosen, experts in (
        ("num_experts_per_tok", "n_routed_experts"),
        ("dspark_num_experts_per_tok", "dspark_n_routed_experts"),
    ):
        if getattr(text, chosen) > getattr(text, experts):
            raise ConfigError(
                f"text_config.{chosen}",
                getattr(text, chosen),
                f"at most {experts} ({getattr(text, experts)})",
            )


def _check_vocabulary(name: str, token: int, vocab_size: int) -> None:
    if token >= vocab_size:
        raise ConfigError(name, token, f"token ids 0..{vocab_size - 1}")


def _check_token_ids(text: TextConfig) -> None:
    _check_vocabulary("text_config.dspark_noise_token_id", text.dspark_noise_token_id, text.vocab_size)
    if text.engram_layer_ids:
        _check_vocabulary("text_config.engram_pad_token_id", text.engram_pad_token_id, text.vocab_size)


def _check_engram(text: TextConfig) -> None:
    """Holds table sizes to their rules and stored row counts to the sums of the primes (spec 8.1, 10.1)."""
    if not text.engram_layer_ids:
        return
    rules = {
        "engram_max_ngram_size": between(2, 64),
        "engram_vocab_size": at_least(2),
        "engram_n_heads": between(1, 1024),
        "engram_head_dim": _BLOCKS,
    }
    for name, rule in rules.items():
        if not rule.holds(getattr(text, name)):
            raise ConfigError(f"text_config.{name}", getattr(text, name), rule.supported)
    columns = (text.engram_max_ngram_size - 1) * text.engram_n_heads
    if text.engram_vocab_size * columns > MAX_TABLE_ROWS:
        raise ConfigError(
            "text_config.engram_vocab_size", text.engram_vocab_size, f"at most {MAX_TABLE_ROWS // columns}"
        )
    expected = tuple(sum(map(sum, layer)) for layer in text.engram_table_sizes)
    if not text.engram_num_embeddings:
        object.__setattr__(text, "engram_num_embeddings", expected)
    elif text.engram_num_embeddings != expected:
        raise ConfigError(
            "text_config.engram_num_embeddings",
            list(text.engram_num_embeddings),
            f"{list(expected)}, the sums of the table primes",
        )
