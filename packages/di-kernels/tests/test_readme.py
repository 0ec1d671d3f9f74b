"""The example of the README runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

from di_kernels import num_threads
from di_kernels.testing import threads

README = Path(__file__).parents[1] / "README.md"


def test_the_example_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 1
    assert 5 <= len(blocks[0].splitlines()) <= 15
    with threads(num_threads()):
        exec(compile(blocks[0], str(README), "exec"), {})
