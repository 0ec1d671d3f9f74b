"""Pool sizes and sequence length from settings, model and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from di_engine import EngineConfig, EngineConfigError
from di_engine.capacity import (
    CACHE_MEMORY_FRACTION,
    _group_memory,
    available_memory,
    plan_capacity,
    plan_weights,
    total_memory,
)
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
    assert capacity.num_blocks * layout.block_bytes + capacity.num_slots * layout.slot_bytes <= budget
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
    total = total_memory()
    assert total is not None
    assert 1 << 24 < available_memory() <= total < 1 << 50


NO_LIMIT = 2**63 - 1


def group(folder: Path, limit: object = None, used: object = None, stat: str = "", version: int = 2) -> None:
    """Files of a control group; what is None is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for name, value in zip(names, (limit, used), strict=True):
        if value is not None:
            (folder / name).write_text(f"{value}\n")
    (folder / "memory.stat").write_text(stat)


def left(directory: Path, membership: str | bytes) -> int:
    """What the groups below ``directory`` leave a process with this /proc/self/cgroup."""
    lines = directory / "membership"
    lines.write_bytes(membership if isinstance(membership, bytes) else membership.encode())
    return _group_memory(lines, directory)


def test_the_least_that_a_group_or_one_around_it_leaves_counts(tmp_path: Path) -> None:
    """As below ``systemd-run -p MemoryMax=`` and Slurm, where the root of the tree has no limit at all."""
    group(tmp_path)
    group(tmp_path / "system.slice", 1000, 700, "active_file 50\ninactive_file 100\n")
    group(tmp_path / "system.slice" / "run.scope", 500, 20)
    group(tmp_path / "system.slice" / "other.scope", 1, 1)
    assert left(tmp_path, "0::/system.slice/run.scope\n") == 1000 - 700 + 100
    group(tmp_path / "system.slice" / "run.scope", 300, 20)
    assert left(tmp_path, "0::/system.slice/run.scope\n") == 300 - 20
    group(tmp_path / "system.slice" / "run.scope", "max", 20)
    assert left(tmp_path, "0::/system.slice/run.scope\n") == 400
    assert left(tmp_path, "0::/\n") == NO_LIMIT


def test_a_group_that_is_the_root_of_a_container_counts(tmp_path: Path) -> None:
    group(tmp_path, 1000, 1500, "inactive_file 2000\n")
    for path in ("/", "/system.slice/docker-of-the-machine.scope", "/../elsewhere", "/gone (deleted)"):
        assert left(tmp_path, f"0::{path}\n") == 1000  # file pages do not add to the limit
    group(tmp_path, 1000, 1500)
    assert left(tmp_path, "0::/\n") == 0


def test_control_groups_of_version_1_count(tmp_path: Path) -> None:
    group(tmp_path / "memory", 2**63 - 4096, 900, version=1)
    group(tmp_path / "memory" / "job", 800, 300, "inactive_file 1\ntotal_inactive_file 50\n", version=1)
    group(tmp_path / "memory" / "job" / "step:0", 2**63 - 4096, 10, version=1)
    group(tmp_path / "cpu", 1, 1, version=1)
    lines = "9:name=systemd:/\n5:hugetlb,memory:/job/step:0\n3:cpu,cpuacct:/job\n0::/\n"
    assert left(tmp_path, lines) == 800 - 300 + 50
    assert left(tmp_path, "5:memory:/\n") > 1 << 60


@pytest.mark.parametrize("limit", ["max", "", "-1", "1e3", "²", "a lot", None])
def test_what_is_no_number_of_bytes_is_no_limit(tmp_path: Path, limit: str | None) -> None:
    group(tmp_path / "job", limit, 5)
    assert left(tmp_path, "0::/job\n") == NO_LIMIT


def test_files_that_cannot_be_read_leave_what_others_tell(tmp_path: Path) -> None:
    group(tmp_path, 1000, 100)
    (tmp_path / "job" / "memory.max").mkdir(parents=True)  # reading it fails
    assert left(tmp_path, "0::/job\n") == 900
    assert left(tmp_path, "no line of the kind\n") == 900
    assert left(tmp_path, b"0::/\xff\n") == 900
    assert _group_memory(tmp_path / "nowhere", tmp_path) == 900
    assert _group_memory(tmp_path / "nowhere", tmp_path / "nowhere") == NO_LIMIT
    group(tmp_path / "job", None, "?", "inactive_file\ninactive_file ?\n")
    (tmp_path / "job" / "memory.max").rmdir()
    (tmp_path / "job" / "memory.max").write_text("700")
    assert left(tmp_path, "0::/job\n") == 700  # with nothing known to be used, the limit still holds


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
