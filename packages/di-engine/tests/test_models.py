"""Names of shipped models, and what stands in their way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from di_engine import EngineConfig, EngineConfigError, models
from di_engine.cli import run
from di_engine.models import resolve_model, shipped_models


@pytest.fixture
def shipped(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of ``small``, the only model of this installation; the working directory is an empty one."""
    directory = Path(shutil.copytree(checkpoint, tmp_path / "installation" / "small"))
    (directory.parent / "leftover").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(models, "_HERE", directory.parent)
    monkeypatch.chdir(tmp_path / "work")
    return directory


def test_a_name_is_the_shipped_model(shipped: Path) -> None:
    assert shipped_models() == ("small",)
    assert resolve_model("small") == shipped
    assert EngineConfig.from_dict({"model": "small"}).model == shipped


@pytest.mark.parametrize("model", ["./small", "leftover", "small/", "Small", Path("small")])
def test_everything_else_is_a_path(shipped: Path, model: str | Path) -> None:
    assert resolve_model(model) == Path(model)


def test_a_directory_that_is_no_checkpoint_changes_nothing(shipped: Path) -> None:
    Path("small").mkdir()
    assert resolve_model("small") == shipped


def test_a_checkpoint_of_the_same_name_has_to_be_told_apart(shipped: Path) -> None:
    shutil.copytree(shipped, "small")
    with pytest.raises(EngineConfigError, match=r"'small', allowed: \./small for the checkpoint here"):
        EngineConfig.from_dict({"model": "small"})
    assert EngineConfig.from_dict({"model": "./small"}).model == Path("small")


def test_commands_take_names(shipped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "small", "--prompt", "Hello", "--max-tokens", "3", "--ignore-eos"]) == 0
    assert run(["inspect", "small"]) == 0
    assert str(shipped) in capsys.readouterr().out
    assert run(["verify", "equality", "--checkpoint", "small", "--cases", "1"]) in (0, 1)
    assert "1 cases" in capsys.readouterr().out


def test_commands_tell_a_directory_from_a_name(shipped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(shipped, "small")
    Path("small/config.json").write_text("{}")
    assert run(["generate", "./small", "--prompt", "Hello"]) == 1
    assert run(["inspect", "small"]) == 2
    assert "./small for the checkpoint here" in capsys.readouterr().err


def test_a_model_that_is_not_there_gets_the_shipped_names(
    shipped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", "missing"]) == 2
    assert "or 'small', which is shipped" in capsys.readouterr().err
