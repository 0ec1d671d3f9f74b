"""Pictures of simulations. matplotlib (extra ``plot``) is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from di_engine.simulator.errors import PlotUnavailableError
from di_engine.simulator.report import Times
from di_engine.simulator.simulation import SimulationRun
from di_engine.simulator.study import Contender, StudyPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

FORMATS = (".svg", ".png", ".pdf")
"""Endings of pictures."""
COLORS = {Contender.REFERENCE: "#c1440e", Contender.HOMOGENEOUS: "#3b6ea5", Contender.MIXED: "#2e8b57"}
MARKS = {Contender.REFERENCE: "s", Contender.HOMOGENEOUS: "^", Contender.MIXED: "o"}


def plot_study(points: Sequence[StudyPoint], path: Path) -> None:
    """Times over request rates, one line a contender, one row of panels a number of ranks.

    The ending of ``path`` chooses the format (:data:`FORMATS`). Raises :class:`PlotUnavailableError` without
    matplotlib, and ValueError for a format that it does not know.
    """
    panels: tuple[tuple[str, Callable[[StudyPoint], float]], ...] = (
        ("first token, mean", lambda point: _of(point.summary.time_to_first_token).mean),
        ("first token, p99", lambda point: _of(point.summary.time_to_first_token).p99),
        ("between tokens, mean", lambda point: _of(point.summary.time_between_tokens).mean),
        ("between tokens, p99", lambda point: _of(point.summary.time_between_tokens).p99),
    )
    ranks = sorted({point.ranks for point in points})
    figure, axes = _figure(len(ranks), len(panels))
    for row, count in enumerate(ranks):
        for column, (title, value) in enumerate(panels):
            axis = axes[row][column]
            for contender in Contender:
                line = [p for p in points if p.contender is contender and p.ranks == count]
                axis.plot(
                    [point.rate for point in line],
                    [1e3 * value(point) for point in line],
                    marker=MARKS[contender],
                    markersize=4,
                    color=COLORS[contender],
                    label=contender.value,
                )
            axis.set_title(f"{title}, {count} rank{'s' if count > 1 else ''}", fontsize=9)
            _label(axis, "requests a second and rank", "ms", logarithmic=True)
    axes[0][0].legend(fontsize=8)
    _save(figure, path)


def plot_run(run: SimulationRun, path: Path) -> None:
    """How times are distributed in one simulation, and use of the blocks over its course. As :func:`plot_study`."""
    recorder, trace = run.recorder, run.recorder.trace
    figure, axes = _figure(1, 3)
    first = recorder.first_token - trace.arrival
    _cumulative(axes[0][0], first[~np.isnan(first)], None)
    axes[0][0].set_title("time to first token", fontsize=9)
    _cumulative(axes[0][1], np.array(recorder.gaps.values), np.array(recorder.gaps.weights))
    axes[0][1].set_title("time between tokens", fontsize=9)
    times = np.cumsum(run.weights) * run.config.snapshot_interval
    usable = run.config.scheduler.num_blocks - 1
    for rank in range(run.used_blocks.shape[1]):
        axes[0][2].plot(times, 100 * run.used_blocks[:, rank] / usable, linewidth=1)
    axes[0][2].set_title("use of the blocks, a line a rank", fontsize=9)
    _label(axes[0][2], "s", "%")
    _save(figure, path)


def _cumulative(axis: Axes, values: NDArray[np.float64], weights: NDArray[np.int64] | None) -> None:
    """Share of the values (each counted ``weights`` times, default once) that are at most x."""
    order = np.argsort(values, kind="stable")
    counts = np.ones(len(values)) if weights is None else weights[order]
    if len(values):
        axis.step(1e3 * values[order], 100 * np.cumsum(counts) / counts.sum(), where="post")
        axis.set_xscale("log")
        _plain_ticks(axis.xaxis)
    _label(axis, "ms", "% at most")


def _label(axis: Axes, x: str, y: str, logarithmic: bool = False) -> None:
    axis.set_xlabel(x, fontsize=8)
    axis.set_ylabel(y, fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.3)
    if logarithmic:
        axis.set_yscale("log")
        _plain_ticks(axis.yaxis)


def _plain_ticks(axis: Axis) -> None:
    """Numbers such as 200 on a logarithmic axis, not 2 x 10^2."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _figure(rows: int, columns: int) -> tuple[Any, Any]:
    """A figure and its axes, [rows][columns], drawn without any window system."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotUnavailableError(error) from error
    figure = Figure(figsize=(3.2 * columns, 2.7 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _save(figure: Any, path: Path) -> None:
    """Write it without a date, so that the same figure is the same file."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "di", "svg.fonttype": "none"}):
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, metadata=metadata)


def _of(times: Times | None) -> Times:
    return Times(0, *(float("nan"),) * 5) if times is None else times
