"""The example of the README runs."""

import re
from pathlib import Path


def test_the_readme_example_runs() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(examples) == 1
    names: dict[str, object] = {}
    exec(compile(examples[0], "README.md", "exec"), names)
    assert names["stored"] == [3, 4, 5, 6, 7]
