"""``di bench layer``: a step through one layer of each kind at full size."""

from __future__ import annotations

import sys
from typing import Annotated

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


def command(
    kind: Annotated[str, typer.Option(help="Only kinds of layers with this in their name.")] = "",
    step: Annotated[str, typer.Option(help="Only steps with this in their name.")] = "",
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
    kinds = [each for each in KINDS if kind in each.name]
    steps = [each for each in STEPS if step in each.name]
    for option, text, chosen, known in (("--kind", kind, kinds, KINDS), ("--step", step, steps, STEPS)):
        if not chosen:
            allowed = "; ".join(each.name for each in known)
            raise CommandError(f"{option}: got {text!r}, allowed: a part of {allowed}", EXIT_USAGE)
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
        results = [{**reached_record(reached), "experts": held} for reached in found]
        record = Record("layer", this_machine(), results, load)
    write_record(record, as_json, out)
    if not as_json:
        print_reached(found)
        typer.echo(f"{held} routed experts in memory")
        typer.echo(load_text(load))
