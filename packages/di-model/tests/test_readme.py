"""The example of the README runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


def test_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    assert re.fullmatch(r"\d+ tensors \[3, 320\] \[\d+(, \d+){4}\]\n", capsys.readouterr().out)
