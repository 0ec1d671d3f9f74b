"""``di bench layer``: a step through one layer of each kind at full size."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from di_engine.cli.bench_output import (
    InstructionSetOption,
    JsonOption,
    OutOption,
    PinOption,
    SecondsOption,
    ThreadsOption,
    load_text,
    print_reached,
    thread_counts,
    using_kernels,
    write_record,
)
from di_engine.cli.common import EXIT_USAGE, CommandError
from di_engine.cli.interruption import raise_from_now_on

if TYPE_CHECKING:
    from di_engine.benchmark.layer import Kind, Step

NAME_HELP = "Only {} with this in their name; a whole name takes that one alone."


def command(
    kind: Annotated[str, typer.Option(help=NAME_HELP.format("kinds of layers"))] = "",
    step: Annotated[str, typer.Option(help=NAME_HELP.format("steps"))] = "",
    experts: Annotated[
        int | None,
        typer.Option(min=6, max=384, help="Routed experts of a layer; by default as many as memory holds."),
    ] = None,
    layout: Annotated[
        str, typer.Option(help="Of the weights: packed, or stored as in a checkpoint.")
    ] = "packed",
    threads: ThreadsOption = None,
    seconds: SecondsOption = 2.0,
    instruction_set: InstructionSetOption = None,
    pin: PinOption = False,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Time decode and prefill steps through layers of the release at full size, with random weights.

    "reached" is the share of what the step needs at least: to read the weights of the experts that it hits, all other
    weights and the caches at the rate of a plain read of the same weights, or to compute at the rate of the dot.

    --seconds is for each kind, step and number of threads, and starts when the weights of all layers are made, which
    takes about a minute. With all 384 experts there are 13 GB of memory in use, 7 GB of them experts; with the
    defaults it takes five to ten minutes.
    """
    from tqdm import tqdm  # type: ignore[import-untyped]

    from di_engine.benchmark.layer import KINDS, STEPS, experts_in_memory, measure_layers
    from di_engine.benchmark.layer_model import Layout
    from di_engine.benchmark.machine import this_machine
    from di_engine.benchmark.record import Record, reached_record
    from di_engine.benchmark.release import released_config
    from di_engine.benchmark.timing import LoadMeter
    from di_engine.capacity import available_memory

    raise_from_now_on()
    kinds, steps = _chosen("--kind", kind, KINDS), _chosen("--step", step, STEPS)
    layouts = [each.value for each in Layout]
    if layout not in layouts:
        raise CommandError(f"--layout: got {layout!r}, allowed: {' or '.join(layouts)}", EXIT_USAGE)
    counts = thread_counts(threads)
    held = experts or experts_in_memory(released_config(), available_memory())
    meter = LoadMeter()
    with using_kernels(instruction_set, pin):
        total = len(kinds) * len(steps) * len(counts)
        with tqdm(total=total, unit="case", disable=not sys.stderr.isatty()) as bar:
            found = measure_layers(
                kinds, steps, counts, seconds, held, Layout(layout), progress=lambda reached: bar.update()
            )
        load = meter.read()
        results = [{**reached_record(reached), "experts": held, "layout": layout} for reached in found]
        record = Record("layer", this_machine(), results, load)
    write_record(record, as_json, out)
    if not as_json:
        print_reached(found)
        typer.echo(
            f"{held} routed experts in memory{'' if layout == Layout.PACKED.value else ', weights as stored'}"
        )
        typer.echo(load_text(load))


_Named = TypeVar("_Named", "Kind", "Step")


def _chosen(option: str, text: str, known: Sequence[_Named]) -> list[_Named]:
    """What is named so; if nothing is, what has the text in its name."""
    found = [each for each in known if each.name == text] or [each for each in known if text in each.name]
    if not found:
        allowed = "; ".join(each.name for each in known)
        raise CommandError(f"{option}: got {text!r}, allowed: a part of {allowed}", EXIT_USAGE)
    return found
