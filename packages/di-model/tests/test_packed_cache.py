"""What a directory of packed weights holds, and what is removed from it."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from di_kernels.testing import assert_same_bits
from di_model import packed_cache
from di_model.checkpoint import Checkpoint, load_checkpoint
from di_model.packed import WeightLayout, lay_out
from di_model.packed_cache import kept_files, remove_unused
from di_model.packed_file import PackedFileError, writer_lock
from di_model.testing import tiny_config, write_checkpoint
from di_model.weight_tree import matrices

DAY = 86400.0


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), tiny_config())


@pytest.fixture
def checkpoint(original: Path, tmp_path: Path) -> Checkpoint:
    return load_checkpoint(shutil.copytree(original, tmp_path / "checkpoint"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def age(path: Path, days: float) -> None:
    """As if nobody had touched a file, and what tells of its use, for so long."""
    then = time.time() - days * DAY
    for each in (path, path.with_name(path.name.split(".")[0] + ".lock")):
        if each.exists():
            os.utime(each, (then, then))


def test_a_file_tells_its_size_its_use_and_its_checkpoint(checkpoint: Checkpoint, cache: Path) -> None:
    before = time.time() - 1
    lay_out(checkpoint, WeightLayout.PACKED, cache)
    (file,) = kept_files(cache)
    assert file.path.parent == cache
    assert file.nbytes == file.path.stat().st_size > 0
    assert before <= file.used <= time.time() + 1
    assert file.checkpoint == str(checkpoint.path.resolve())
    age(file.path, 5)
    assert kept_files(cache)[0].used == pytest.approx(time.time() - 5 * DAY, abs=60)
    lay_out(checkpoint, WeightLayout.PACKED, cache)  # mapped, not written
    assert kept_files(cache)[0].used >= before
    assert file.path.stat().st_mtime == pytest.approx(time.time() - 5 * DAY, abs=60)


def test_what_was_not_used_is_removed_and_written_anew(checkpoint: Checkpoint, cache: Path) -> None:
    lay_out(checkpoint, WeightLayout.PACKED, cache)
    lay_out(load_checkpoint(checkpoint.path, draft=False), WeightLayout.PACKED, cache)
    newest, oldest = kept_files(cache)
    age(newest.path, 2)
    age(oldest.path, 9)
    assert remove_unused(cache, 10 * DAY) == []
    assert [file.path for file in remove_unused(cache, 5 * DAY)] == [oldest.path]
    assert [file.path for file in kept_files(cache)] == [newest.path]
    assert [file.path for file in remove_unused(cache, 0)] == [newest.path]
    assert kept_files(cache) == []
    lay_out(checkpoint, WeightLayout.PACKED, cache)
    assert len(kept_files(cache)) == 1


def test_who_has_mapped_a_removed_file_keeps_it(checkpoint: Checkpoint, cache: Path) -> None:
    weights = lay_out(checkpoint, WeightLayout.PACKED, cache)
    assert len(remove_unused(cache, 0)) == 1
    for (_, packed), (_, stored) in zip(matrices(weights), matrices(checkpoint.weights), strict=True):
        assert packed.is_packed
        assert_same_bits(packed.dequantize(), stored.dequantize())


def test_what_is_being_written_stays(checkpoint: Checkpoint, cache: Path) -> None:
    lay_out(checkpoint, WeightLayout.PACKED, cache)
    (file,) = kept_files(cache)
    part = cache / f"{file.path.stem}.{'0' * 16}.part"
    part.write_bytes(bytes(100))
    with writer_lock(file.lock, 0):
        assert {each.path for each in kept_files(cache)} == {file.path, part}
        assert remove_unused(cache, 0) == []
    age(part, 3)  # of a killed process
    os.utime(file.lock)
    assert [each.path for each in remove_unused(cache, DAY)] == [part]
    assert [each.path for each in kept_files(cache)] == [file.path]


def test_a_file_without_its_lock_counts_from_when_it_was_written(checkpoint: Checkpoint, cache: Path) -> None:
    lay_out(checkpoint, WeightLayout.PACKED, cache)
    (file,) = kept_files(cache)
    file.lock.unlink()
    age(file.path, 3)
    (found,) = kept_files(cache)
    assert found.checkpoint is None
    assert [each.path for each in remove_unused(cache, 2 * DAY)] == [file.path]


def test_a_use_is_recorded_where_the_lock_is_missing(checkpoint: Checkpoint, cache: Path) -> None:
    lay_out(checkpoint, WeightLayout.PACKED, cache)
    (file,) = kept_files(cache)
    file.lock.unlink()
    age(file.path, 9)
    lay_out(checkpoint, WeightLayout.PACKED, cache)
    assert remove_unused(cache, DAY) == []
    assert kept_files(cache)[0].checkpoint == str(checkpoint.path.resolve())


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_an_odd_lock_keeps_its_file_only(
    checkpoint: Checkpoint, cache: Path, make: Callable[[Path], None]
) -> None:
    lay_out(checkpoint, WeightLayout.PACKED, cache)
    lay_out(load_checkpoint(checkpoint.path, draft=False), WeightLayout.PACKED, cache)
    odd, other = kept_files(cache)
    odd.lock.unlink()
    make(odd.lock)
    left, removed = sorted(remove_unused(cache, 0), key=lambda file: file.problem is None)
    assert (left.path, removed.path, removed.problem) == (odd.path, other.path, None)
    assert str(odd.lock) in (left.problem or "")
    assert [(each.path, each.checkpoint) for each in kept_files(cache)] == [(odd.path, None)]


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_what_is_no_file_is_passed_over(
    checkpoint: Checkpoint, cache: Path, make: Callable[[Path], None]
) -> None:
    lay_out(checkpoint, WeightLayout.PACKED, cache)
    (file,) = kept_files(cache)
    make(cache / f"{'a' * 32}.packed")
    assert kept_files(cache) == [file]
    assert remove_unused(cache, 0) == [file]
    assert (cache / f"{'a' * 32}.packed").is_symlink() or (cache / f"{'a' * 32}.packed").exists()


def test_a_file_that_cannot_be_read_hides_no_other(
    checkpoint: Checkpoint, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(checkpoint, WeightLayout.PACKED, cache)
    lay_out(load_checkpoint(checkpoint.path, draft=False), WeightLayout.PACKED, cache)
    shut, other = kept_files(cache)
    is_ours = packed_cache._is_ours

    def refused(path: Path) -> bool:  # chmod refuses nothing to root
        if path == shut.path:
            raise PermissionError(13, "Permission denied", str(path))
        return is_ours(path)

    monkeypatch.setattr(packed_cache, "_is_ours", refused)
    assert [(each.path, each.problem) for each in kept_files(cache)] == [
        (shut.path, "Permission denied"),
        (other.path, None),
    ]
    assert {each.path: each.problem for each in remove_unused(cache, 0)} == {
        shut.path: "Permission denied",
        other.path: None,
    }
    assert shut.path.exists()


def test_a_file_that_was_emptied_is_listed_and_removed(cache: Path) -> None:
    cache.mkdir()
    (cache / f"{'a' * 32}.packed").touch()
    assert [each.nbytes for each in kept_files(cache)] == [0]
    assert len(remove_unused(cache, 0)) == 1
    assert kept_files(cache) == []


def test_of_a_lock_one_line_of_bounded_length_is_read(checkpoint: Checkpoint, cache: Path) -> None:
    lay_out(checkpoint, WeightLayout.PACKED, cache)
    (file,) = kept_files(cache)
    file.lock.write_bytes(b"one\ntwo\n")
    assert kept_files(cache)[0].checkpoint == "one"
    file.lock.write_bytes(b"x" * 100_000)
    assert len(kept_files(cache)[0].checkpoint or "") == 4096


def test_nothing_else_is_touched(cache: Path, tmp_path: Path) -> None:
    cache.mkdir()
    others = ["digests.json", "model.packed", f"{'a' * 32}.packed", f"{'b' * 32}.lock", f"{'A' * 32}.packed"]
    for name in others:
        (cache / name).write_text("somebody's")
    assert kept_files(cache) == remove_unused(cache, 0) == []
    assert sorted(path.name for path in cache.iterdir()) == sorted(others)
    for path in (tmp_path / "none", cache / others[0]):
        with pytest.raises(NotADirectoryError, match="no directory"):
            kept_files(path)


def test_all_is_removed_whatever_its_time(checkpoint: Checkpoint, cache: Path) -> None:
    lay_out(checkpoint, WeightLayout.PACKED, cache)
    (file,) = kept_files(cache)
    age(file.path, -5)  # the clock was wrong
    assert remove_unused(cache, DAY) == []
    assert [each.path for each in remove_unused(cache, 0)] == [file.path]


def test_the_lock_goes_with_the_last_file(checkpoint: Checkpoint, cache: Path) -> None:
    lay_out(checkpoint, WeightLayout.PACKED, cache)
    (file,) = kept_files(cache)
    part = cache / f"{file.path.stem}.{'0' * 16}.part"
    part.write_bytes(bytes(100))
    age(part, 3)
    os.utime(file.lock)
    assert [each.path for each in remove_unused(cache, DAY)] == [part]
    assert file.lock.exists()
    assert [each.path for each in remove_unused(cache, 0)] == [file.path]
    assert not file.lock.exists()


def test_a_lock_that_was_removed_while_it_was_waited_for_is_taken_anew(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    entered = threading.Event()

    def wait() -> None:
        with writer_lock(path, 60):
            entered.set()
            with pytest.raises(PackedFileError), writer_lock(path, 0):
                pass

    with ThreadPoolExecutor(1) as pool:
        with writer_lock(path, 0):
            waiting = pool.submit(wait)
            while not waiting.running():
                time.sleep(0.001)
            time.sleep(0.1)  # it waits for the file that is there now
            path.unlink()
        waiting.result(60)
    assert entered.is_set()
    assert path.exists()
