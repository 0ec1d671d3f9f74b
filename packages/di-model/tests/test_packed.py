"""Packed weights: the same bits, and a cache file that is written once, held to its contents, and never half there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from di_kernels.testing import assert_same_bits
from di_model import content, packed_file
from di_model.checkpoint import Checkpoint, load_checkpoint
from di_model.packed import WeightLayout, lay_out, matrix_bytes
from di_model.packed_file import PackedFileError
from di_model.testing import tiny_config, write_checkpoint
from di_model.weight_tree import matrices, replace_matrices
from di_model.weights import ModelWeights


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return load_checkpoint(write_checkpoint(tmp_path / "checkpoint", tiny_config()))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "packed"


def assert_same_matrices(got: ModelWeights, expected: ModelWeights) -> None:
    pairs = list(zip(matrices(got), matrices(expected), strict=True))
    assert len(pairs) > 20
    for (name, matrix), (same, stored) in pairs:
        assert (name, matrix.shape, matrix.format) == (same, stored.shape, stored.format)
        assert matrix.is_packed
        assert_same_bits(matrix.dequantize(torch.bfloat16), stored.dequantize(torch.bfloat16))


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.suffix != ".lock")


def the_file(directory: Path) -> Path:
    (path,) = directory.glob("*.packed")
    return path


def test_matrices_have_unique_names_and_can_be_replaced(checkpoint: Checkpoint) -> None:
    names = [name for name, _ in matrices(checkpoint.weights)]
    assert len(set(names)) == len(names)
    assert {"head", "layers.0.attn.wq_a", "layers.0.moe.experts.w1.0", "draft.main_proj"} <= set(names)
    seen: list[str] = []
    same = replace_matrices(checkpoint.weights, lambda name, matrix: (seen.append(name), matrix)[1])
    assert sorted(seen) == sorted(names)
    assert [m for _, m in matrices(same)] == [m for _, m in matrices(checkpoint.weights)]
    assert same.layers[0].moe.experts is not checkpoint.weights.layers[0].moe.experts
    assert same.norm is checkpoint.weights.norm


def test_layouts_in_memory(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = checkpoint.weights
    assert lay_out(checkpoint, WeightLayout.STORED) is stored
    assert_same_matrices(lay_out(checkpoint, WeightLayout.PACKED), stored)
    assert_same_matrices(lay_out(checkpoint, WeightLayout.AUTO), stored)
    monkeypatch.setattr("di_model.packed.SMALL_BYTES", matrix_bytes(stored) - 1)
    assert lay_out(checkpoint, WeightLayout.AUTO) is stored
    assert_same_matrices(lay_out(checkpoint, WeightLayout.PACKED), stored)


@pytest.mark.parametrize("layout", [WeightLayout.AUTO, WeightLayout.PACKED])
def test_the_file_is_written_once(
    checkpoint: Checkpoint, cache: Path, layout: WeightLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_same_matrices(lay_out(checkpoint, layout, cache), checkpoint.weights)
    path = the_file(cache)
    assert files(cache) == sorted([path.name, "digests.json"])
    before = path.stat()
    for module, name in ((packed_file, "_write"), (content, "_shard_digest")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("done before"))
    assert_same_matrices(lay_out(checkpoint, layout, cache), checkpoint.weights)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_the_file_belongs_to_the_contents_not_to_the_place(
    checkpoint: Checkpoint, cache: Path, tmp_path: Path
) -> None:
    lay_out(checkpoint, WeightLayout.PACKED, cache)
    first = the_file(cache)
    moved = load_checkpoint(shutil.copytree(checkpoint.path, tmp_path / "moved"))
    lay_out(moved, WeightLayout.PACKED, cache)
    assert the_file(cache) == first
    (cache / "digests.json").write_text("{]", encoding="utf-8")
    lay_out(moved, WeightLayout.PACKED, cache)
    assert the_file(cache) == first


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "huge file"])
def test_a_record_that_is_no_file_or_never_ends_is_done_without(
    checkpoint: Checkpoint, cache: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(checkpoint, WeightLayout.PACKED, cache)
    record = cache / "digests.json"
    whole = record.read_bytes()
    record.unlink()
    if kind == "pipe":
        os.mkfifo(record)
    elif kind == "device":
        record.symlink_to("/dev/zero")
    elif kind == "directory":
        record.mkdir()
    else:
        monkeypatch.setattr(content, "_MOST_RECORD", len(whole) - 1)
        record.write_bytes(whole)
    read: list[Path] = []
    digest = content._shard_digest
    monkeypatch.setattr(
        content, "_shard_digest", lambda path, *rest: (read.append(path), digest(path, *rest))[1]
    )
    assert_same_matrices(lay_out(checkpoint, WeightLayout.PACKED, cache), checkpoint.weights)
    assert read, "what the record says was believed"
    assert kind == "directory" or record.read_bytes() == whole


def test_a_changed_shard_gets_a_file_of_its_own(checkpoint: Checkpoint, cache: Path, tmp_path: Path) -> None:
    lay_out(checkpoint, WeightLayout.PACKED, cache)
    moved = tmp_path / "moved"
    shutil.copytree(checkpoint.path, moved)
    shard = max(moved.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    other = load_checkpoint(moved)
    assert_same_matrices(lay_out(other, WeightLayout.PACKED, cache), other.weights)
    assert len(list(cache.glob("*.packed"))) == 2


def test_a_draft_that_was_left_out_is_still_part_of_the_contents(
    checkpoint: Checkpoint, cache: Path, tmp_path: Path
) -> None:
    """Digests are remembered: those of a load without the draft must serve a load with it."""
    alone = load_checkpoint(checkpoint.path, draft=False)
    assert_same_matrices(lay_out(alone, WeightLayout.PACKED, cache), alone.weights)
    assert_same_matrices(lay_out(checkpoint, WeightLayout.PACKED, cache), checkpoint.weights)
    assert len(list(cache.glob("*.packed"))) == 2


@pytest.mark.parametrize("damage", ["shorter", "longer", "header", "magic", "empty"])
def test_a_damaged_file_is_written_anew(checkpoint: Checkpoint, cache: Path, damage: str) -> None:
    lay_out(checkpoint, WeightLayout.PACKED, cache)
    path = the_file(cache)
    good = path.read_bytes()
    bad = {
        "shorter": good[:-1],
        "longer": good + b"\0",
        "header": good[:60] + bytes([good[60] ^ 1]) + good[61:],
        "magic": bytes([good[0] ^ 1]) + good[1:],
        "empty": b"",
    }[damage]
    path.write_bytes(bad)
    assert_same_matrices(lay_out(checkpoint, WeightLayout.PACKED, cache), checkpoint.weights)
    assert path.read_bytes() == good


def test_what_a_killed_writer_left_is_removed(checkpoint: Checkpoint, cache: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from di_model import packed, packed_file;"
        "from di_model.checkpoint import load_checkpoint;"
        "packed_file.pack = lambda *_: os.kill(os.getpid(), signal.SIGKILL);"
        "packed.lay_out(load_checkpoint(sys.argv[1]), packed.WeightLayout.PACKED, Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", script, str(checkpoint.path), str(cache)]
    assert subprocess.run(command, timeout=120).returncode == -signal.SIGKILL
    assert [name.endswith(".part") for name in files(cache)] == [True, False]
    assert_same_matrices(lay_out(checkpoint, WeightLayout.PACKED, cache), checkpoint.weights)
    assert files(cache) == sorted([the_file(cache).name, "digests.json"])


def test_a_shard_that_was_changed_in_place_is_read_again(checkpoint: Checkpoint, cache: Path) -> None:
    lay_out(checkpoint, WeightLayout.PACKED, cache)
    shard = max(checkpoint.path.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    before, data = shard.stat(), bytearray(shard.read_bytes())
    data[-1] ^= 1
    with shard.open("r+b") as file:
        file.write(data)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (shard.stat().st_ino, shard.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    changed = load_checkpoint(checkpoint.path)
    assert_same_matrices(lay_out(changed, WeightLayout.PACKED, cache), changed.weights)
    assert len(list(cache.glob("*.packed"))) == 2


def test_a_file_is_used_where_nothing_can_be_written(
    checkpoint: Checkpoint, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(checkpoint, WeightLayout.PACKED, cache)
    (cache / "digests.json").write_text("[" * 100_000, encoding="utf-8")  # deeper than Python reads

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(content, "whole_file", refuse)
    moved = load_checkpoint(shutil.copytree(checkpoint.path, tmp_path / "moved"))
    assert_same_matrices(lay_out(moved, WeightLayout.PACKED, cache), moved.weights)


@pytest.mark.parametrize("failing", ["posix_fallocate", "fsync", "replace"])
def test_a_failed_write_leaves_nothing_behind(
    checkpoint: Checkpoint, cache: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(checkpoint, WeightLayout.STORED, cache)
    content.content_digest(checkpoint, (cache.mkdir(parents=True), cache / "digests.json")[1])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, full)
        with pytest.raises(PackedFileError, match=r"packed weights in .*: No space left on device"):
            lay_out(checkpoint, WeightLayout.PACKED, cache)
    assert files(cache) == ["digests.json"]
    assert_same_matrices(lay_out(checkpoint, WeightLayout.PACKED, cache), checkpoint.weights)


def test_a_directory_that_cannot_be_made_is_named(checkpoint: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PackedFileError, match="file/inside"):
        lay_out(checkpoint, WeightLayout.PACKED, tmp_path / "file" / "inside")


def test_a_writer_waits_for_another_but_not_for_ever(
    checkpoint: Checkpoint, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(checkpoint, WeightLayout.PACKED, cache)
    path = the_file(cache)
    path.unlink()
    holder = "import fcntl, sys, time; f = open(sys.argv[1], 'ab'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); "
    command = [sys.executable, "-c", holder + "time.sleep(60)", str(path.with_suffix(".lock"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        monkeypatch.setattr(packed_file, "LOCK_SECONDS", 0.2)
        with pytest.raises(PackedFileError, match="another process has held"):
            lay_out(checkpoint, WeightLayout.PACKED, cache)
        process.kill()
        process.wait()
    monkeypatch.setattr(packed_file, "LOCK_SECONDS", 20.0)
    assert_same_matrices(lay_out(checkpoint, WeightLayout.PACKED, cache), checkpoint.weights)


def test_processes_that_start_together_write_one_file(checkpoint: Checkpoint, cache: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from di_model.checkpoint import load_checkpoint;"
        "from di_model.packed import WeightLayout, lay_out;"
        "lay_out(load_checkpoint(sys.argv[1]), WeightLayout.PACKED, Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", script, str(checkpoint.path), str(cache)]
    running = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(timeout=120) for process in running] == [0, 0]
    assert files(cache) == sorted([the_file(cache).name, "digests.json"])
    assert_same_matrices(lay_out(checkpoint, WeightLayout.PACKED, cache), checkpoint.weights)


def replace_shard(checkpoint: Checkpoint) -> Path:
    """Puts a file of other weights in the place of the largest shard."""
    shard = max(checkpoint.path.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    other = shard.with_suffix(".new")
    other.write_bytes(data)
    os.replace(other, shard)
    return shard


def test_a_shard_that_was_replaced_after_it_was_mapped_is_refused(
    checkpoint: Checkpoint, cache: Path
) -> None:
    shard = replace_shard(checkpoint)
    with pytest.raises(PackedFileError, match=f"{shard.name} was replaced or changed"):
        lay_out(checkpoint, WeightLayout.PACKED, cache)
    assert files(cache) == []
    anew = load_checkpoint(checkpoint.path)
    assert_same_matrices(lay_out(anew, WeightLayout.PACKED, cache), anew.weights)


def test_a_shard_that_is_gone_is_named(checkpoint: Checkpoint, cache: Path) -> None:
    shard = min(checkpoint.path.glob("*.safetensors"))
    shard.unlink()
    with pytest.raises(PackedFileError, match=f"{shard.name}: No such file"):
        lay_out(checkpoint, WeightLayout.PACKED, cache)


@pytest.mark.parametrize(("module", "name"), [(content, "read_shard_header"), (packed_file, "pack")])
def test_a_shard_that_is_replaced_while_it_is_read_leaves_nothing_stored(
    checkpoint: Checkpoint, cache: Path, module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, replaced = getattr(module, name), []

    def slow(*arguments: object) -> object:
        if not replaced:
            replaced.append(replace_shard(checkpoint))
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, slow)
        with pytest.raises(PackedFileError, match=r"was replaced or changed"):
            lay_out(checkpoint, WeightLayout.PACKED, cache)
    assert set(files(cache)) <= {"digests.json"}
    anew = load_checkpoint(checkpoint.path)
    assert_same_matrices(lay_out(anew, WeightLayout.PACKED, cache), anew.weights)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_the_umask_decides_who_may_read_the_files(
    checkpoint: Checkpoint, cache: Path, umask: int, mode: int
) -> None:
    before = os.umask(umask)
    try:
        lay_out(checkpoint, WeightLayout.PACKED, cache)
    finally:
        os.umask(before)
    for path in (the_file(cache), cache / "digests.json"):
        assert path.stat().st_mode & 0o777 == mode
