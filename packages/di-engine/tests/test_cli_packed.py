"""``di packed``: what is listed and what is removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from di_engine import EngineConfig, load_model
from di_engine.cli import run


@pytest.fixture
def cache(checkpoint: Path, tmp_path: Path) -> Path:
    load_model(EngineConfig(model=checkpoint, max_num_seqs=1, packed_directory=tmp_path / "cache"))
    return tmp_path / "cache"


def test_files_are_listed_and_removed(
    cache: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = cache.glob("*.packed")
    assert run(["packed", str(cache)]) == 0
    text = capsys.readouterr().out
    assert path.name in text
    assert str(checkpoint.resolve())[:20] in text
    assert "1 file, " in text
    assert run(["packed", str(cache), "--remove-unused", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [file["path"] for file in found["kept"]] == [str(path)]
    assert found["kept"][0]["nbytes"] == path.stat().st_size
    assert found["removed"] == []
    assert run(["packed", str(cache), "--remove-unused", "0"]) == 0
    text = capsys.readouterr().out
    assert f"removed {path}" in text
    assert "0 files, 0 B" in text
    assert not path.exists()


def test_what_was_not_removed_is_named_after_what_was(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = cache.glob("*.packed")
    other = cache / f"{'a' * 32}.packed"
    other.touch()
    path.with_suffix(".lock").unlink()
    path.with_suffix(".lock").mkdir()
    assert run(["packed", str(cache), "--remove-unused", "0"]) == 1
    shown = capsys.readouterr()
    assert f"removed {other}" in shown.out
    assert path.name in shown.out
    assert f"di: not removed: {path.name}: " in shown.err
    assert run(["packed", str(cache), "--remove-unused", "0", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["removed"] == []
    assert "directory" in found["kept"][0]["problem"]


def test_what_a_lock_holds_is_shown_as_text(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (lock,) = cache.glob("*.lock")
    lock.write_text("\x1b]0;title\x07 /models/[red]v1\n")
    assert run(["packed", str(cache)]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "\\x1b]0;title\\x07 /models/[red]v1" in text


@pytest.mark.parametrize("arguments", [["none"], [".", "--remove-unused", "-1"]])
def test_mistakes_are_named(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["packed", *arguments]) == 2
    assert capsys.readouterr().err.startswith("di: ")


@pytest.mark.parametrize(
    "command", ["packed", "demo-checkpoint", "generate nano --prompt a --packed-directory"]
)
def test_an_empty_path_is_not_the_current_directory(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*command.split(), ""]) == 2
    assert "got '', allowed: a path" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
