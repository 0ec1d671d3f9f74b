"""``di bench kernels``: every operation of a step beside what the machine reaches at most."""

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
    names,
    print_reached,
    thread_counts,
    using_kernels,
    write_record,
)
from di_engine.cli.common import EXIT_USAGE, CommandError
from di_engine.cli.interruption import raise_from_now_on

ALL_FAMILIES = "linear,attention,top-k,sampling,step"


def command(
    family: Annotated[str, typer.Option(help="Families of operations, separated by commas.")] = ALL_FAMILIES,
    match: Annotated[
        str,
        typer.Option(
            help="Only cases with this in their title: operation, size and rows as in the table, such as 'FP8 packed, "
            "wq_a 1280x5120, rows 1'. Commas and capitals make no difference."
        ),
    ] = "",
    threads: ThreadsOption = None,
    seconds: SecondsOption = 0.5,
    instruction_set: InstructionSetOption = None,
    pin: PinOption = False,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Time the operations of a step at the sizes of the release.

    Each is timed in turns with a plain read of its weights or caches, with the bfloat16 dot of the instruction set
    and, where there is one, with a peer. "reached" is the share of whichever ceiling binds.

    --seconds is for each case and number of threads, and starts when its weights are made: of a linear layer of few
    rows as many as fill four last-level caches, and the same in bfloat16 for the peer. For all 87 cases that alone
    takes about six minutes and 9 GB of memory where the cache has 480 MB, less where it is smaller.
    """
    from tqdm import tqdm  # type: ignore[import-untyped]

    from di_engine.benchmark.kernels import FAMILIES, kernel_recipes, measure_kernels, nearest_titles
    from di_engine.benchmark.machine import this_machine
    from di_engine.benchmark.record import Record, reached_record
    from di_engine.benchmark.timing import LoadMeter

    raise_from_now_on()
    families = names("--family", family, tuple(FAMILIES))
    counts = thread_counts(threads)
    meter = LoadMeter()
    with using_kernels(instruction_set, pin):
        recipes = kernel_recipes(families, match)
        if not recipes:
            allowed = f"a part of a title of {family}, such as {'; '.join(nearest_titles(families, match))}"
            raise CommandError(f"--match: got {match!r}, allowed: {allowed}", EXIT_USAGE)
        with tqdm(total=len(recipes) * len(counts), unit="case", disable=not sys.stderr.isatty()) as bar:
            found = measure_kernels(recipes, counts, seconds, progress=lambda reached: bar.update())
        load = meter.read()
        record = Record("kernels", this_machine(), [reached_record(reached) for reached in found], load)
    write_record(record, as_json, out)
    if not as_json:
        print_reached(found)
        typer.echo(load_text(load))
