"""The README's examples run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from di_engine import cli

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like the repository after ``make run``."""
    folder = tmp_path_factory.mktemp("readme")
    assert cli.run(["demo-checkpoint", str(folder / ".cache" / "demo-checkpoint")]) == 0
    return folder


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


def test_the_python_example_answers_every_prompt(home: Path) -> None:
    (example,) = _blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=home, capture_output=True, text=True, timeout=120, check=True
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("('")]
    assert len(lines) == 2
    assert "error" not in done.stdout


@pytest.mark.parametrize("command", ["generate", "inspect", "doctor"])
def test_the_commands_succeed(command: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = [line.split("#")[0] for block in _blocks("bash") for line in block.splitlines()]
    (line,) = [line for line in shown if line.startswith(f"di {command} ") or line.strip() == f"di {command}"]
    monkeypatch.chdir(home)
    arguments = [part.strip('"') for part in re.findall(r'"[^"]*"|\S+', line)][1:]
    assert cli.run(arguments) == 0
