"""Settings are checked when they are made, and the error names the setting."""

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from di_scheduler import ConfigError, Scheduler, SchedulerConfig, SequenceLimits, StepPolicy


def test_defaults_are_accepted() -> None:
    config = SchedulerConfig(num_blocks=100, num_slots=257)
    assert config.policy is StepPolicy.MIXED
    assert not Scheduler(config).has_unfinished()
    with pytest.raises(FrozenInstanceError):
        config.num_blocks = 3  # type: ignore[misc]


def test_numpy_integers_count_as_integers() -> None:
    config = SchedulerConfig(num_blocks=np.int64(100), num_slots=257)  # type: ignore[arg-type]
    assert Scheduler(config).stats().free_blocks == 99


@pytest.mark.parametrize(
    "field, value",
    [
        ("num_blocks", 1),
        ("num_blocks", 2**31),
        ("num_blocks", 100.0),
        ("num_blocks", True),
        ("num_slots", 1),
        ("num_slots", 256),  # no room for max_num_seqs besides slot 0
        ("block_size", 0),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", 0),
        ("max_num_batched_tokens", 255),  # less than a row for each sequence
        ("max_chunk_tokens", 0),
        ("max_model_len", 1),
        ("max_draft_tokens", -1),
        ("lookback", -1),
        ("policy", "mixed"),
    ],
)
def test_a_bad_setting_is_named(field: str, value: object) -> None:
    settings: dict[str, Any] = {"num_blocks": 100, "num_slots": 257, field: value}
    with pytest.raises(ConfigError, match=rf"^{field} must .*got {value!r}$"):
        SchedulerConfig(**settings)


@pytest.mark.parametrize(
    "field, value, name",
    [
        ("max_tokens", 0, "max_tokens"),
        ("max_tokens", -1, "max_tokens"),
        ("max_tokens", 1.5, "max_tokens"),
        ("min_tokens", -1, "min_tokens"),
        ("min_tokens", 9, "min_tokens"),  # more than max_tokens
        ("eos_token_ids", [1], "eos_token_ids"),
        ("eos_token_ids", (1, -1), r"eos_token_ids\[1\]"),
        ("stop_token_ids", ("x",), r"stop_token_ids\[0\]"),
        ("stop_token_ids", 5, "stop_token_ids"),
        ("ignore_eos", 1, "ignore_eos"),
    ],
)
def test_a_bad_limit_is_named(field: str, value: object, name: str) -> None:
    fields: dict[str, Any] = {"max_tokens": 8, field: value}
    with pytest.raises(ConfigError, match=f"^{name} must"):
        SequenceLimits(**fields)
