"""Figures and plots of ``docs/nano.md`` from what ``di eval --json`` and training wrote.

    .venv/bin/python -m examples.nano.report .cache/nano .cache/nano2

Each directory is a training run with ``log.jsonl`` and ``eval.json``. The first is the shipped one: its tables and
curves go into the page. The others, runs of other seeds, stand beside it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.nano.chart import Axis, Series, line_chart

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, RECALL_PLOT, TRAINING_PLOT, LOG_FILE = (
    "nano.md",
    "nano-recall.svg",
    "nano-training.svg",
    "nano-log.jsonl",
)
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->"
DISTANCE_TICKS = (20, 60, 120, 250, 500, 900, 1800, 3000)
MILLION = 1e6
LOGGED = {
    "text": "accuracy: text",
    "recall inside the window": "accuracy: recall",
    "recall beyond the window": "accuracy: recall beyond the window",
    "arithmetic": "accuracy: arithmetic",
    "JSON": "accuracy: json",
    "dictionary": "accuracy: dictionary",
}
"""Curves of the training plot: names of the log's running averages."""

LOG_STEPS = 100
"""One line of the log in so many steps goes into the documents, and its last."""

Scores = dict[str, Any]
"""What ``di eval --json`` wrote."""


@dataclass(frozen=True)
class Run:
    """A finished training run: its log, line by line, and its scores."""

    log: Sequence[dict[str, Any]]
    scores: Scores

    @classmethod
    def read(cls, directory: Path) -> Run:
        lines = (directory / "log.jsonl").read_text(encoding="utf-8").splitlines()
        scores = json.loads((directory / "eval.json").read_text(encoding="utf-8"))
        return cls([json.loads(line) for line in lines], scores)


def figures(runs: Sequence[Run]) -> str:
    """The figures of the page in Markdown: tables of the first run, and its spread to the others."""
    shipped = runs[0]
    last = shipped.log[-1]
    parts = [
        f"Trained on {last['tokens'] / MILLION:.1f} million tokens in {last['seconds'] / 3600:.1f} hours.",
        _texts(shipped.scores),
        _tasks(shipped.scores),
        _formats(shipped.scores),
        f"![Recall by distance, whole and with one part switched off]({RECALL_PLOT})",
        f"![Running accuracy of next tokens in training]({TRAINING_PLOT})",
        f"The log of the run is [{LOG_FILE}]({LOG_FILE}).",
    ]
    if len(runs) > 1:
        parts.insert(4, _seeds(runs))
    return "\n\n".join(parts) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _texts(scores: Scores) -> str:
    rows = [
        [
            text["name"],
            f"{text['num_bytes']:,}",
            *(f"{text[column]:.3f}" for column in ("model", "ngram", "xz")),
        ]
        for text in scores["texts"]
    ]
    return _table(["bits per byte", "bytes", "nano", "n-gram", "`xz -9`"], rows)


def _tasks(scores: Scores) -> str:
    variants = scores["variants"]
    rows = [
        [_label(tasks[0]), str(tasks[0]["cases"]), *(_share(task) for task in tasks)]
        for tasks in zip(*(variant["tasks"] for variant in variants), strict=True)
    ]
    losses = [f"{variant['bits_per_byte']:.3f}" for variant in variants]
    rows.append(["bits per byte, first piece of each text", "", *losses])
    return _table(["exact match", "cases", *(variant["name"] for variant in variants)], rows)


def _label(task: dict[str, Any]) -> str:
    distance = task["distance"]
    return str(task["task"]) if distance is None else f"{task['task']}, {distance:,} tokens back"


def _share(task: dict[str, Any]) -> str:
    return f"{task['correct'] / task['cases']:.0%}"


def _formats(scores: Scores) -> str:
    formats = scores["formats"]
    served = formats["release"]
    rows = [["as served", f"{served:.4f}", ""]]
    for label, key in (("float32 numerics", "float32"), ("before quantization, float32", "trained")):
        if formats[key] is not None:
            rows.append([label, f"{formats[key]:.4f}", f"{served / formats[key] - 1:+.2%}"])
    return _table(["number formats", "bits per byte", "served against it"], rows)


def _seeds(runs: Sequence[Run]) -> str:
    """Every figure of all parts, run by run."""
    rows = [
        [texts[0]["name"] + ", bits per byte", *(f"{text['model']:.3f}" for text in texts)]
        for texts in zip(*(run.scores["texts"] for run in runs), strict=True)
    ]
    rows += [
        [_label(tasks[0]), *map(_share, tasks)]
        for tasks in zip(*(run.scores["variants"][0]["tasks"] for run in runs), strict=True)
    ]
    return _table(["the same script with", *(f"seed {seed + 1}" for seed in range(len(runs)))], rows)


def recall_plot(scores: Scores) -> str:
    """SVG of recall against distance, a line for each variant."""
    series = [
        Series(
            variant["name"],
            [
                (task["distance"], 100 * task["correct"] / task["cases"])
                for task in variant["tasks"]
                if task["distance"] is not None
            ],
        )
        for variant in scores["variants"]
    ]
    x = Axis("tokens between value and question", 15, 4000, DISTANCE_TICKS, logarithmic=True)
    return line_chart("Recall of a value by distance (window: 128)", x, _percent("right, %"), series)


def training_plot(log: Sequence[dict[str, Any]]) -> str:
    """SVG of running accuracies against tokens trained on."""
    series = [
        Series(name, [(line["tokens"] / MILLION, 100 * line[key]) for line in log if key in line])
        for name, key in LOGGED.items()
    ]
    most = log[-1]["tokens"] / MILLION
    step = 10 ** max(0, len(str(int(most))) - 1)
    x = Axis("million tokens", 0, most, range(0, int(most) + 1, step))
    return line_chart("Next tokens right while training", x, _percent("right, %"), series)


def _percent(label: str) -> Axis:
    return Axis(label, 0, 100, (0, 25, 50, 75, 100))


def filled(page: str, text: str) -> str:
    """The page with ``text`` between its markers. Raises ValueError when they are absent."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN.strip()} ... {END}")
    return before + begin + text + end + after


def thinned(log: Sequence[dict[str, Any]]) -> str:
    """JSON lines of the log that go into the documents."""
    kept = [line for line in log[:-1] if line["step"] % LOG_STEPS == 0]
    return "".join(json.dumps(line) + "\n" for line in [*kept, log[-1]])


def main() -> None:
    parser = argparse.ArgumentParser(description="Write figures and plots of docs/nano.md.")
    parser.add_argument("runs", type=Path, nargs="+", help="the shipped run, then those of other seeds")
    parser.add_argument("--docs", type=Path, default=DOCS)
    options = parser.parse_args()
    runs = [Run.read(directory) for directory in options.runs]
    page = options.docs / PAGE
    page.write_text(filled(page.read_text(encoding="utf-8"), figures(runs)), encoding="utf-8")
    (options.docs / RECALL_PLOT).write_text(recall_plot(runs[0].scores), encoding="utf-8")
    (options.docs / TRAINING_PLOT).write_text(training_plot(runs[0].log), encoding="utf-8")
    (options.docs / LOG_FILE).write_text(thinned(runs[0].log), encoding="utf-8")


if __name__ == "__main__":
    main()
