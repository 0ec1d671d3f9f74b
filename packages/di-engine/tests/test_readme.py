"""The examples of the README run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 3
    names: dict[str, object] = {}
    for example in examples:
        exec(example, names)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("length 12 ")
    assert printed[1].startswith("length 12 ")
    assert [line.split(" ")[0] for line in printed[2:4]] == ["b'", "b'"]  # words begin with a space
    assert printed[-1].startswith("request-1 ")
    assert printed[-1].endswith((" length", " stop"))
