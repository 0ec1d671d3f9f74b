"""The page's figures are those of the files, its plots show them where they belong, and nothing else is touched."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from examples.nano import report
from examples.nano.chart import Axis, Series, line_chart
from examples.nano.report import BEGIN, END, Run, figures, filled, recall_plot, thinned, training_plot

SVG = "{http://www.w3.org/2000/svg}"


def _scores(near: int, far: int) -> dict[str, Any]:
    def tasks(*correct: int) -> list[dict[str, Any]]:
        kinds = (("recall", 20), ("recall", 3000), ("json", None))
        return [
            {"task": task, "distance": distance, "cases": 10, "correct": right}
            for (task, distance), right in zip(kinds, correct, strict=True)
        ]

    return {
        "texts": [{"name": "novel", "num_bytes": 1234, "model": 1.75, "ngram": 1.939, "xz": 2.372}],
        "variants": [
            {"name": "all parts", "bits_per_byte": 1.8, "tasks": tasks(near, far, 5)},
            {"name": "window only", "bits_per_byte": 2.0, "tasks": tasks(9, 0, 4)},
        ],
        "formats": {"release": 1.8, "float32": 1.79, "trained": 1.75},
    }


LOG = [
    {"step": step, "tokens": 40_000 * step, "seconds": 20.0 * step, "accuracy: text": step / 1000}
    for step in range(20, 501, 20)
]


def test_tables_hold_the_figures() -> None:
    text = figures([Run(LOG, _scores(10, 8)), Run(LOG, _scores(9, 7))])
    for line in (
        "20.0 million tokens in 2.8 hours",
        "| novel | 1,234 | 1.750 | 1.939 | 2.372 |",
        "| recall, 3,000 tokens back | 10 | 80% | 0% |",
        "| json | 10 | 50% | 40% |",
        "| before quantization, float32 | 1.7500 | +2.86% |",
        "| recall, 20 tokens back | 100% | 90% |",
    ):
        assert line in text
    assert "the same script" not in figures([Run(LOG, _scores(10, 8))])


def test_only_what_stands_between_the_markers_changes() -> None:
    page = f"before\n{BEGIN}old\n{END}\nafter\n"
    once = filled(page, "new\n")
    assert once == f"before\n{BEGIN}new\n{END}\nafter\n"
    assert filled(once, "new\n") == once
    with pytest.raises(ValueError, match="the page has no"):
        filled("a page", "new\n")


def test_a_line_goes_through_its_points() -> None:
    x, y = Axis("x", 1, 100, (1, 10, 100), logarithmic=True), Axis("y & z", 0, 10, (0, 10))
    drawing = ElementTree.fromstring(line_chart("a < b", x, y, [Series("s", [(1, 0), (10, 10), (100, 5)])]))
    (line,) = drawing.iter(f"{SVG}polyline")
    (left, bottom), (middle, top), (right, half) = (
        tuple(map(float, point.split(","))) for point in line.attrib["points"].split()
    )
    assert left < middle < right
    assert middle - left == pytest.approx(right - middle, abs=0.2)
    assert top < half < bottom
    assert half - top == pytest.approx(bottom - half, abs=0.2)
    assert {"a < b", "y & z", "s", "100"} <= {text.text for text in drawing.iter(f"{SVG}text")}


def test_plots_have_a_line_for_each_variant_and_curve() -> None:
    for drawing, lines in ((recall_plot(_scores(10, 8)), 2), (training_plot(LOG), 6)):
        assert len(list(ElementTree.fromstring(drawing).iter(f"{SVG}polyline"))) == lines


def test_the_log_is_thinned_and_keeps_its_end() -> None:
    steps = [json.loads(line)["step"] for line in thinned(LOG[:-2]).splitlines()]
    assert steps == [100, 200, 300, 400, 460]


def test_the_command_writes_the_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, docs = tmp_path / "run", tmp_path / "docs"
    run.mkdir()
    docs.mkdir()
    (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LOG))
    (run / "eval.json").write_text(json.dumps(_scores(10, 8)))
    (docs / "nano.md").write_text((report.DOCS / "nano.md").read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["report", str(run), "--docs", str(docs)])
    report.main()
    assert {file.name for file in docs.iterdir()} == {
        "nano.md",
        "nano-recall.svg",
        "nano-training.svg",
        "nano-log.jsonl",
    }
    assert "| novel | 1,234 | 1.750 |" in (docs / "nano.md").read_text(encoding="utf-8")
