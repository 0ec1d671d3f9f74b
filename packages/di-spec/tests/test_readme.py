"""The example of the README runs and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


def test_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    (expected,) = re.findall(r"prints\n\n    (.*)\n", readme)
    assert capsys.readouterr().out.strip() == expected
