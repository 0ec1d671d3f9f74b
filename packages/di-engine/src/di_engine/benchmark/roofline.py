"""A picture of written records: rates over arithmetic intensity, under what the machine reaches at most.

matplotlib (extra ``plot``) is imported when one is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from di_engine.simulator.errors import PlotUnavailableError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = {"linear": "o", "attention": "s", "indexer": "^", "layer": "D", "model": "P"}
OURS, PEERS = "#2e8b57", "#c1440e"
INTENSITIES = (0.5, 4096.0)


@dataclass(frozen=True, slots=True)
class Point:
    """A rate that was reached."""

    label: str
    mark: str
    intensity: float
    """Operations a byte."""
    flops: float
    """A second."""
    is_peer: bool


@dataclass(frozen=True, slots=True)
class Roof:
    """Ceilings, the medians of a run."""

    read: float
    dot: float

    def at(self, intensity: float) -> float:
        """Operations a second at most."""
        return min(self.dot, self.read * intensity)


def points(results: Iterable[dict[str, Any]], threads: int) -> list[Point]:
    """What records say about this number of threads; operations that only read or that was disturbed are left out."""
    found = []
    for result in results:
        if result.get("threads") != threads or not result.get("flops") or result.get("disturbed"):
            continue
        if result["family"] == "peer":
            if result["read"]:
                found.append(
                    _peer(
                        result["peer"],
                        result["flops"] / result["read"],
                        result["flops"],
                        result["step"]["minimum"],
                    )
                )
            continue
        mark = MARKS.get(result["family"])
        if mark is None:
            continue
        flops, read = result["flops"], result["read_bytes"]
        found.append(Point(result["family"], mark, flops / read, flops / result["seconds"], is_peer=False))
        if result["peer"] is not None:
            found.append(
                _peer(result["peer"], flops / result["peer_read_bytes"], flops, result["peer_seconds"])
            )
    return found


def _peer(label: str, intensity: float, flops: float, seconds: float) -> Point:
    name = label.split(",")[0].split(" (")[0]
    return Point(name, "x" if name.startswith("torch") else "*", intensity, flops / seconds, is_peer=True)


def roof(results: Iterable[dict[str, Any]], threads: int) -> Roof | None:
    """The ceilings that records with this number of threads had; None without any."""
    with_roof = [each for each in results if each.get("threads") == threads and each.get("read_ceiling")]
    # Buffers that fit into a cache are read faster than memory is.
    from_memory = [each for each in with_roof if each["family"] in ("linear", "layer")] or with_roof
    if not from_memory:
        return None
    return Roof(
        median(each["read_ceiling"] for each in from_memory),
        median(each["dot_ceiling"] for each in with_roof),
    )


def plot_roofline(results: Sequence[dict[str, Any]], path: Path) -> None:
    """One panel a number of threads.

    The ending of ``path`` chooses the format (svg, png, pdf). Raises
    :class:`~di_engine.simulator.errors.PlotUnavailableError` without matplotlib, ValueError for a format that it does
    not know or for results without a ceiling.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotUnavailableError(error) from error
    counts = sorted({each["threads"] for each in results if each.get("read_ceiling")})
    if not counts:
        raise ValueError("no result has a ceiling; allowed: records of di bench kernels, layer or model")
    figure = Figure(figsize=(6.4 * len(counts), 4.8), layout="constrained")
    axes = figure.subplots(1, len(counts), squeeze=False, sharey=True)[0]
    for axis, threads in zip(axes, counts, strict=True):
        ceiling = roof(results, threads)
        assert ceiling is not None
        _panel(axis, ceiling, points(results, threads))
        axis.set_title(f"{threads} thread{'s' if threads > 1 else ''}", fontsize=10)
    axes[0].set_ylabel("GFLOP/s", fontsize=9)
    with matplotlib.rc_context({"svg.hashsalt": "di", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panel(axis: Axes, ceiling: Roof, found: Sequence[Point]) -> None:
    ridge = ceiling.dot / ceiling.read
    line = [INTENSITIES[0], ridge, INTENSITIES[1]]
    axis.plot(line, [1e-9 * ceiling.at(each) for each in line], color="black", linewidth=1.2)
    dot, read = f"dot {1e-9 * ceiling.dot:.0f} GFLOP/s", f"read {1e-9 * ceiling.read:.0f} GB/s"
    axis.text(INTENSITIES[1], 1.05e-9 * ceiling.dot, dot, ha="right", va="bottom", fontsize=8)
    axis.text(INTENSITIES[0], 4e-9 * ceiling.at(INTENSITIES[0]), read, fontsize=8)
    for label in dict.fromkeys(point.label for point in found):
        group = [point for point in found if point.label == label]
        color, mark = (PEERS if group[0].is_peer else OURS), group[0].mark
        axis.plot(
            [point.intensity for point in group],
            [1e-9 * point.flops for point in group],
            linestyle="none",
            marker=mark,
            markersize=5,
            color=color,
            markerfacecolor="none",
            label=label,
        )
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel("operations a byte of weights and caches", fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="lower right")
