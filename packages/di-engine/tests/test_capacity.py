"""Pool sizes and sequence length from settings, model and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from di_engine import EngineConfig, EngineConfigError
from di_engine.capacity import CACHE_MEMORY_FRACTION, available_memory, plan_capacity, plan_weights
from di_model.checkpoint import load_checkpoint
from di_model.config import ModelConfig
from di_model.packed import WeightLayout, copy_bytes, pack_in_memory
from di_model.testing import tiny_config, write_checkpoint
from di_model.weight_tree import matrices

PLENTY = 1 << 40


def model(max_position_embeddings: int = 1 << 20) -> ModelConfig:
    return ModelConfig.from_dict(tiny_config(text={"max_position_embeddings": max_position_embeddings}))


def settings(**values: Any) -> EngineConfig:
    return EngineConfig.from_dict({"model": "m", "max_num_seqs": 4, **values})


def test_the_default_length_is_4096_or_what_the_model_has() -> None:
    assert plan_capacity(settings(), model(), PLENTY).max_model_len == 4096
    assert plan_capacity(settings(), model(1000), PLENTY).max_model_len == 1000


def test_the_default_pool_is_what_the_sequences_can_use() -> None:
    capacity = plan_capacity(settings(max_model_len=300), model(), PLENTY)
    assert capacity.num_blocks == 4 * 3 + 1
    assert capacity.num_slots == 5


def test_the_default_pool_keeps_to_its_share_of_memory_and_shortens_the_length() -> None:
    layout = plan_capacity(settings(), model(), PLENTY).layout
    budget = 5 * layout.slot_bytes + 7 * layout.block_bytes + layout.block_bytes // 2
    capacity = plan_capacity(settings(), model(), int(budget / CACHE_MEMORY_FRACTION))
    assert capacity.num_blocks == 7
    assert capacity.max_model_len == 6 * 128
    assert capacity.pool_bytes <= budget
    # A length that was asked for stays: requests beyond the pool are refused one by one.
    asked = plan_capacity(settings(max_model_len=4000), model(), int(budget / CACHE_MEMORY_FRACTION))
    assert (asked.num_blocks, asked.max_model_len) == (7, 4000)


def test_bytes_of_cache_pay_for_slots_first() -> None:
    layout = plan_capacity(settings(), model(), PLENTY).layout
    cost = 5 * layout.slot_bytes + 3 * layout.block_bytes
    assert plan_capacity(settings(kv_cache_bytes=cost), model(), PLENTY).num_blocks == 3
    with pytest.raises(EngineConfigError, match="kv_cache_bytes"):
        plan_capacity(settings(kv_cache_bytes=cost - 2 * layout.block_bytes), model(), PLENTY)


@pytest.mark.parametrize(
    ("values", "memory", "field"),
    [
        ({"max_model_len": 1001}, PLENTY, "max_model_len"),
        ({"num_blocks": 1000}, 1 << 20, "num_blocks"),
        ({"kv_cache_bytes": 1 << 30}, 1 << 20, "kv_cache_bytes"),
        ({"max_num_seqs": 200}, 1 << 20, "max_num_seqs"),
    ],
)
def test_what_does_not_fit_is_refused(values: dict[str, Any], memory: int, field: str) -> None:
    with pytest.raises(EngineConfigError) as caught:
        plan_capacity(settings(**values), model(1000), memory)
    assert caught.value.field == field


def test_available_memory_is_that_of_a_machine_that_runs_tests() -> None:
    assert 1 << 24 < available_memory() < 1 << 50


@pytest.mark.parametrize("draft", [True, False])
def test_the_size_of_a_packed_copy_is_known_before_anything_is_loaded(tmp_path: Path, draft: bool) -> None:
    checkpoint = load_checkpoint(write_checkpoint(tmp_path / "checkpoint", tiny_config()), draft=draft)
    packed = sum(matrix.nbytes for _, matrix in matrices(pack_in_memory(checkpoint.weights)))
    for layout in (WeightLayout.PACKED, WeightLayout.AUTO):
        assert copy_bytes(checkpoint.config, layout, draft=draft) == packed
    assert copy_bytes(checkpoint.config, WeightLayout.STORED, draft=draft) == 0


def test_auto_copies_small_models_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert copy_bytes(model(), WeightLayout.AUTO) > 0
    for most in (0, 1 << 18):  # below the experts, and between them and all matrices
        monkeypatch.setattr("di_model.packed.SMALL_BYTES", most)
        assert copy_bytes(model(), WeightLayout.AUTO) == 0
        assert copy_bytes(model(), WeightLayout.PACKED) > 0


def test_a_packed_copy_in_memory_must_fit() -> None:
    size = copy_bytes(model(), WeightLayout.PACKED)
    asked = settings(weight_layout="packed")
    assert plan_weights(asked, model(), size) == (WeightLayout.PACKED, size)
    with pytest.raises(EngineConfigError, match=f"takes {size} bytes and {size - 1} are available") as caught:
        plan_weights(asked, model(), size - 1)
    assert caught.value.field == "weight_layout"
    in_a_file = settings(weight_layout="packed", packed_directory="d")
    assert plan_weights(in_a_file, model(), 0) == (WeightLayout.PACKED, 0)
    assert plan_weights(settings(weight_layout="stored"), model(), 0) == (WeightLayout.STORED, 0)


def test_auto_packs_in_memory_what_leaves_half_of_it() -> None:
    size = copy_bytes(model(), WeightLayout.AUTO)
    assert plan_weights(settings(), model(), 2 * size) == (WeightLayout.PACKED, size)
    assert plan_weights(settings(), model(), 2 * size - 1) == (WeightLayout.STORED, 0)
