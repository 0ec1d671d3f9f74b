"""The README's examples, and what ``make run`` does, run as they stand there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from di_engine import cli
from di_engine.models import shipped_models

ROOT = Path(__file__).resolve().parent.parent
needs_nano = pytest.mark.skipif(
    "nano" not in shipped_models(), reason="the weights of nano are not in this tree"
)


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


@needs_nano
def test_the_python_example_answers_every_prompt(tmp_path: Path) -> None:
    (example,) = _blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("('")]
    assert len(lines) == 2
    assert "error" not in done.stdout


@pytest.mark.parametrize(
    "command",
    [pytest.param("generate", marks=needs_nano), pytest.param("inspect", marks=needs_nano), "doctor"],
)
def test_the_commands_succeed(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = [line.split("#")[0] for block in _blocks("bash") for line in block.splitlines()]
    (line,) = [line for line in shown if line.startswith(f"di {command} ") or line.strip() == f"di {command}"]
    monkeypatch.chdir(tmp_path)
    arguments = [part.strip('"') for part in re.findall(r'"[^"]*"|\S+', line)][1:]
    assert cli.run(arguments) == 0


@needs_nano
def test_make_run_prints_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = re.findall(r"^\t\$\(VENV\)/bin/di (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert len(lines) == 2
    monkeypatch.chdir(tmp_path)
    for line in lines:
        done = subprocess.run(
            [sys.executable, "-m", "di_engine", *shlex.split(line)],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert len(done.stdout.split()) >= 3
