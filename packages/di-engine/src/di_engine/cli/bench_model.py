"""``di bench model``: steps of the whole engine beside its ceilings and other engines."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from di_engine.cli.bench_output import (
    InstructionSetOption,
    JsonOption,
    OutOption,
    PinOption,
    ThreadsOption,
    bound_and_share,
    load_text,
    names,
    thread_counts,
    unpinned,
    using_kernels,
    write_record,
)
from di_engine.cli.bench_peers import interpreter, told_failures
from di_engine.cli.common import plain, print_table
from di_engine.cli.interruption import raise_from_now_on

if TYPE_CHECKING:
    from di_engine.benchmark.model import ModelTiming
    from di_engine.benchmark.peers.models import PeerStep

NANO, GENERATED = "nano", "generated"


def command(
    model: Annotated[
        str,
        typer.Option(
            help="Models, separated by commas: nano, and generated, one of about 100M active parameters."
        ),
    ] = (f"{NANO},{GENERATED}"),
    threads: ThreadsOption = None,
    steps: Annotated[int, typer.Option(min=3, help="Timed steps of each kind.")] = 30,
    peer_python: Annotated[
        Path | None,
        typer.Option(
            help="Python of an environment with benchmarks/peers/requirements-models.txt, whose engines are timed in "
            "the same run.",
            callback=interpreter,
        ),
    ] = None,
    instruction_set: InstructionSetOption = None,
    pin: PinOption = False,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Time decode and prefill steps of the engine, and what of them is spent outside kernels.

    "reached" is the share of what the step needs at least, to read its weights and caches at the rate of a plain read
    of the weights, or to compute. "outside" is the time of a step that is not inside the native module. All are least
    times of many steps; "disturbed" stands where other work left no step alone.

    Without peers it takes about a minute and 1 GB of memory, and 0.3 GB of disk for the generated model while it runs.

    Exits with 1 when a peer could not be measured; what was measured is there all the same.
    """
    from tqdm import tqdm  # type: ignore[import-untyped]

    from di_engine.benchmark.machine import this_machine
    from di_engine.benchmark.model import BATCHES, measure_model, settle
    from di_engine.benchmark.record import Record
    from di_engine.benchmark.timing import LoadMeter

    raise_from_now_on()
    models = names("--model", model, (NANO, GENERATED))
    counts = thread_counts(threads)
    meter = LoadMeter()
    timings: list[ModelTiming] = []
    peers: list[PeerStep] = []
    failures: list[str] = []
    total = len(models) * len(counts) * (len(BATCHES) + 1)
    with (
        using_kernels(instruction_set, pin),
        tqdm(total=total, unit="case", disable=not sys.stderr.isatty()) as bar,
    ):
        for name in models:
            with _directory(name) as directory:
                for count in counts:
                    found = measure_model(name, directory, count, steps, progress=lambda timing: bar.update())
                    timings += found
                    with unpinned():  # a process inherits where it may run
                        peers += _peers(peer_python, name, directory, found, steps, failures)
        timings = settle(timings)
        load = meter.read()
        results = [_timing_record(timing) for timing in timings]
        record = Record("model", this_machine(), [*results, *_peer_records(peers, timings)], load)
    write_record(record, as_json, out)
    if not as_json:
        print_table(_table(timings))
        if peers:
            print_table(_peer_table(peers, timings))
        typer.echo(load_text(load))
    told_failures(failures)


@contextlib.contextmanager
def _directory(name: str) -> Iterator[Path]:
    from di_engine.benchmark.generated import generated_config, write_generated
    from di_engine.models import resolve_model

    if name == NANO:
        yield resolve_model(NANO)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield write_generated(Path(folder), generated_config())


def _peers(
    python: Path | None,
    name: str,
    directory: Path,
    timings: Sequence[ModelTiming],
    steps: int,
    failures: list[str],
) -> list[PeerStep]:
    """transformers on a model of the size of nano, llama.cpp on one that reads as many bytes as the generated one.

    Why one could not be measured goes to ``failures``.
    """
    from di_engine.benchmark.model import PREFILL_TOKENS, PROMPT_TOKENS
    from di_engine.benchmark.peers.models import measure_llama_cpp, measure_transformers
    from di_engine.benchmark.peers.process import PeerError

    if python is None:
        return []
    first = timings[0]
    try:
        if name == NANO:
            text = json.loads((directory / "config.json").read_text(encoding="utf-8"))["text_config"]
            return measure_transformers(python, name, text, first.threads, PROMPT_TOKENS, steps)
        read = first.work.read
        return measure_llama_cpp(python, name, read, first.threads, PROMPT_TOKENS, PREFILL_TOKENS, steps)
    except PeerError as error:
        failures.append(str(error))
        return []


def _timing_record(timing: ModelTiming) -> dict[str, Any]:
    seconds = timing.times.step.minimum
    return {
        "family": "model",
        "name": f"{timing.model}, {timing.name}",
        "size": timing.model,
        "rows": timing.tokens,
        "sequences": timing.sequences,
        "threads": timing.threads,
        "read_bytes": timing.work.read,
        "flops": timing.work.flops,
        "seconds": seconds,
        "median_seconds": timing.times.step.median,
        "tokens_per_second": timing.tokens_per_second,
        "read_ceiling": timing.ceilings.read,
        "dot_ceiling": timing.ceilings.dot,
        "floor_seconds": timing.ceilings.floor(timing.work),
        "bound": "memory" if timing.ceilings.memory_bound(timing.work) else "dot",
        "of_floor": timing.of_floor,
        "disturbed": timing.disturbed,
        "outside_seconds": timing.times.outside.minimum,
        "outside_median_seconds": timing.times.outside.median,
        "outside_share": timing.outside_share,
        "peer": None,
    }


def _peer_records(peers: Sequence[PeerStep], timings: Sequence[ModelTiming]) -> list[dict[str, Any]]:
    return [{"family": "peer", **plain(peer), "ratio": _ratio(peer, _ours(peer, timings))} for peer in peers]


def _ours(peer: PeerStep, timings: Sequence[ModelTiming]) -> ModelTiming:
    """Our step that the peer's is compared with."""
    return next(
        timing
        for timing in timings
        if (timing.model, timing.name, timing.threads, timing.sequences)
        == (peer.model, peer.name, peer.threads, 1)
    )


def _ratio(peer: PeerStep, ours: ModelTiming) -> float | None:
    """How many times the peer's rate ours is: of bytes in decode, of operations in prefill, where both are known; else
    of tokens. None if other work disturbed ours."""
    if ours.disturbed:
        return None
    seconds = ours.times.step.minimum
    if peer.read is not None:
        return (ours.work.read / seconds) / (peer.read / peer.step.minimum)
    if peer.flops is not None:
        return (ours.work.flops / seconds) / (peer.flops / peer.step.minimum)
    return (ours.tokens / seconds) / (peer.tokens / peer.step.minimum)


def _table(timings: Sequence[ModelTiming]) -> Table:
    table = Table(box=None, pad_edge=False)
    columns = ["model", "step", "sequences", "threads", "ms", "tokens/s", "GB/s", "GFLOP/s"]
    for name in [*columns, "bound", "reached", "outside, µs", "its share"]:
        table.add_column(name, justify="left" if name in ("model", "step") else "right")
    for timing in timings:
        seconds = timing.times.step.minimum
        table.add_row(
            timing.model,
            timing.name,
            str(timing.sequences),
            str(timing.threads),
            f"{1e3 * seconds:,.2f}",
            f"{timing.tokens_per_second:,.1f}",
            f"{1e-9 * timing.work.read / seconds:.1f}",
            f"{1e-9 * timing.work.flops / seconds:.1f}",
            *bound_and_share(timing),
            f"{1e6 * timing.times.outside.minimum:,.0f}",
            f"{100 * timing.outside_share:.1f} %",
        )
    return table


def _peer_table(peers: Sequence[PeerStep], timings: Sequence[ModelTiming]) -> Table:
    table = Table(box=None, pad_edge=False, title="other engines", title_justify="left")
    for name in ("peer", "beside", "step", "threads", "ms", "tokens/s", "GB/s", "GFLOP/s", "ours is"):
        table.add_column(name, justify="left" if name in ("peer", "beside", "step") else "right")
    for peer in peers:
        seconds, ratio = peer.step.minimum, _ratio(peer, _ours(peer, timings))
        table.add_row(
            peer.peer,
            peer.model,
            peer.name,
            str(peer.threads),
            f"{1e3 * seconds:,.2f}",
            f"{peer.tokens / seconds:,.1f}",
            "" if peer.read is None else f"{1e-9 * peer.read / seconds:.1f}",
            "" if peer.flops is None else f"{1e-9 * peer.flops / seconds:.1f}",
            "disturbed" if ratio is None else f"{ratio:.2f} times",
        )
    return table
