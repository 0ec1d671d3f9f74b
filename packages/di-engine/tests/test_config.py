"""Settings: every bad one is refused with its field, its value and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from di_engine import EngineConfig, EngineConfigError, Numerics, StepPolicy, WeightLayout


def test_defaults_are_complete() -> None:
    config = EngineConfig(model=Path("somewhere"))
    assert config.numerics is Numerics.RELEASE
    assert config.policy is StepPolicy.MIXED
    assert (config.block_size, config.load_draft, config.tokenizer) == (128, True, None)


def test_plain_data_spells_enumerations_by_value_or_name() -> None:
    config = EngineConfig.from_dict(
        {"model": "m", "numerics": "float32", "policy": "HOMOGENEOUS", "weight_layout": "stored"}
    )
    assert config.model == Path("m")
    assert config.numerics is Numerics.FLOAT32
    assert config.policy is StepPolicy.HOMOGENEOUS
    assert config.weight_layout is WeightLayout.STORED


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", ""),
        ("model", 3),
        ("tokenizer", 3),
        ("numerics", "fp16"),
        ("numerics", 1),
        ("policy", "fast"),
        ("weight_layout", "transposed"),
        ("weight_layout", True),
        ("packed_directory", 3),
        ("packed_directory", "a\0b"),
        ("packed_directory", "packed/\ud800x"),
        ("curve_directory", "a\0b"),
        ("tokenizer", Path("a\0b")),
        ("model", "a\0b"),
        ("max_model_len", 1),
        ("max_model_len", 10.0),
        ("max_num_seqs", 0),
        ("max_num_seqs", True),
        ("max_num_batched_tokens", -1),
        ("max_chunk_tokens", 0),
        ("block_size", 127),
        ("num_blocks", 1),
        ("kv_cache_bytes", 0),
        ("num_threads", 0),
        ("instruction_set", "sse9"),
        ("instruction_set", 4),
        ("seed", 1 << 64),
        ("seed", "7"),
        ("load_draft", 1),
        ("native_plan", 1),
        ("max_draft_tokens", -1),
        ("async_scheduling", 1),
        ("step_timeout", 0),
        ("step_timeout", True),
        ("step_timeout", "1"),
        ("step_timeout", 1e9),
        ("step_timeout", float("nan")),
        ("max_num_batched_tokens", 255),
    ],
)
def test_a_bad_value_is_named(field: str, value: Any) -> None:
    with pytest.raises(EngineConfigError, match=field) as caught:
        EngineConfig.from_dict({"model": "m", field: value})
    assert caught.value.field == field
    assert repr(value) in str(caught.value)
    assert "allowed" in str(caught.value)


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"m"


@pytest.mark.parametrize(
    ("field", "value"),
    [("seed", 10**5000), ("model", BytesPath()), ("model", b"m")],
    ids=["digits", "path of bytes", "bytes"],
)
def test_a_value_that_cannot_be_written_down_is_refused_too(field: str, value: Any) -> None:
    with pytest.raises(EngineConfigError) as caught:
        EngineConfig.from_dict({"model": "m", field: value})
    assert caught.value.field == field
    assert len(str(caught.value)) < 200


def test_integers_of_numpy_are_integers() -> None:
    config = EngineConfig(model=Path("m"), block_size=np.int64(16), seed=np.uint64(2**64 - 1))
    assert (config.block_size, config.seed) == (16, 2**64 - 1)
    assert type(config.block_size) is int
    with pytest.raises(EngineConfigError, match="load_draft"):
        EngineConfig(model=Path("m"), load_draft=np.True_)  # type: ignore[arg-type]
    with pytest.raises(EngineConfigError, match="num_blocks"):
        EngineConfig(model=Path("m"), num_blocks=np.True_)  # type: ignore[arg-type]


def test_unknown_keys_are_named_and_the_known_ones_listed() -> None:
    with pytest.raises(EngineConfigError, match=r"max_seqs.*max_num_seqs"):
        EngineConfig.from_dict({"model": "m", "max_seqs": 3})
    with pytest.raises(EngineConfigError, match="model"):
        EngineConfig.from_dict({})


def test_a_directory_for_packed_weights_is_not_ignored() -> None:
    with pytest.raises(EngineConfigError, match="None when weight_layout is STORED") as caught:
        EngineConfig.from_dict({"model": "m", "weight_layout": "stored", "packed_directory": "d"})
    assert caught.value.field == "packed_directory"


def test_two_ways_to_size_the_pool_exclude_each_other() -> None:
    with pytest.raises(EngineConfigError, match="num_blocks"):
        EngineConfig(model=Path("m"), num_blocks=4, kv_cache_bytes=1 << 20)
