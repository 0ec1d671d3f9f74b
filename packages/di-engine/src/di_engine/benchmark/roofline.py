"""A picture of written records: rates over arithmetic intensity, under what the machine reaches at most.

matplotlib (extra ``plot``) is imported when one is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
    """The ceilings that records with this number of threads had while nothing disturbed them; None without any."""
    with_roof = [
        each
        for each in results
        if each.get("threads") == threads and each.get("read_ceiling") and not each.get("disturbed")
    ]
    # Buffers that fit into a cache are read faster than memory is.
    from_memory = [each for each in with_roof if each["family"] in ("linear", "layer")] or with_roof
    if not from_memory:
        return None
    return Roof(
        median(each["read_ceiling"] for each in from_memory),
        median(each["dot_ceiling"] for each in with_roof),
    )


def left_out(results: Sequence[dict[str, Any]]) -> list[str]:
    """What a picture of these results does not show, and why; nothing where it shows all that has a place in it."""
    lines = []
    disturbed = [each for each in results if each.get("disturbed")]
    if disturbed:
        lines.append(f"results that other work disturbed ({len(disturbed)})")
    families = sorted({each["family"] for each in results} - {*MARKS, "peer"})
    if families:
        lines.append(f"families that have no place in the picture: {', '.join(families)}")
    return lines


def plot_roofline(results: Sequence[dict[str, Any]], path: Path) -> None:
    """One panel a number of threads that has a point; :func:`left_out` tells what has none.

    The ending of ``path`` chooses the format (:data:`~di_engine.simulator.plot.FORMATS`). Raises
    :class:`~di_engine.simulator.errors.PlotUnavailableError` without matplotlib, ValueError for results without a
    point.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotUnavailableError(error) from error
    panels = list(_panels(results))
    if not panels:
        raise ValueError(
            "nothing to draw: no result with a ceiling that was not disturbed is of a family that has a place in the "
            f"picture; allowed: {', '.join(MARKS)}"
        )
    figure = Figure(figsize=(6.4 * len(panels), 4.8), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, (threads, ceiling, found) in zip(axes, panels, strict=True):
        _panel(axis, ceiling, found)
        axis.set_title(f"{threads} thread{'s' if threads > 1 else ''}", fontsize=10)
    axes[0].set_ylabel("GFLOP/s", fontsize=9)
    with matplotlib.rc_context({"svg.hashsalt": "di", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panels(results: Sequence[dict[str, Any]]) -> Iterator[tuple[int, Roof, list[Point]]]:
    """Threads, ceilings and points of each panel that has both."""
    for threads in sorted({each["threads"] for each in results}):
        ceiling, found = roof(results, threads), points(results, threads)
        if ceiling is not None and found:
            yield threads, ceiling, found


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
