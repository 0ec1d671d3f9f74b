"""What the benchmarks of kernels, layers and models print, and the record that they write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from di_engine.cli.common import (
    EXIT_USAGE,
    CommandError,
    check_place,
    numbers,
    os_error_text,
    plain,
    print_json,
    print_table,
)
from di_engine.processors import usable_processors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from di_engine.benchmark.measure import Reached
    from di_engine.benchmark.model import ModelTiming
    from di_engine.benchmark.timing import ForeignLoad

USUAL_THREADS = (1, 2)
DAY = 86_400.0
"""The longest that a case may be measured, in seconds."""

ThreadsOption = Annotated[
    str | None,
    typer.Option(
        help="Numbers of threads, separated by commas.", show_default="1 and 2, if there are two processors"
    ),
]
InstructionSetOption = Annotated[
    str | None, typer.Option(help="Instruction set of the kernels, such as avx2; by default the best one.")
]
SecondsOption = Annotated[
    float,
    typer.Option(
        min=0.0, max=DAY, help="Seconds for each case and number of threads, after its weights were made."
    ),
]
PinOption = Annotated[bool, typer.Option("--pin", help="Keep each thread on a processor of its own.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")]


def _may_be_written(path: Path | None) -> Path | None:
    if path is not None:
        check_place("--out", path)
    return path


OutOption = Annotated[
    Path | None, typer.Option(help="A file that gets the JSON object as well.", callback=_may_be_written)
]


def at_least_one(count: int) -> bool:
    """Whether there is something to count."""
    return count >= 1


def thread_counts(text: str | None) -> list[int]:
    """Of ``--threads``: no more threads than processors, where they would measure how they wait for each other."""
    usable = usable_processors()
    if text is None:
        return [count for count in USUAL_THREADS if count <= usable]
    found = numbers("--threads", text, int, at_least_one, "numbers of at least 1, such as 1,2")
    found = list(dict.fromkeys(found))  # a number given twice would be measured twice
    if max(found) > usable:
        allowed = f"1 to {usable}, the processors that this process may use"
        raise CommandError(f"--threads: got {max(found)}, allowed: {allowed}", EXIT_USAGE)
    return found


def names(option: str, text: str, allowed: Sequence[str]) -> list[str]:
    """Some of the allowed names, separated by commas, each once."""
    found = list(dict.fromkeys(text.split(",")))
    if not set(found) <= set(allowed):
        raise CommandError(f"{option}: got {text!r}, allowed: {', '.join(allowed)}", EXIT_USAGE)
    return found


@contextmanager
def using_kernels(name: str | None, pin: bool) -> Iterator[None]:
    """The kernels on the instruction set of ``--instruction-set``, and pinned with ``--pin``."""
    from di_kernels import instruction_set, pin_threads, set_instruction_set, threads_are_pinned

    before, pinned = instruction_set(), threads_are_pinned()
    try:
        if name is not None:
            set_instruction_set(name)
    except ValueError as error:
        raise CommandError(f"--instruction-set: {error}", EXIT_USAGE) from error
    pin_threads(pin or pinned)
    try:
        yield
    finally:
        set_instruction_set(before)
        pin_threads(pinned)


@contextmanager
def unpinned() -> Iterator[None]:
    """The calling thread, and processes that it starts, wherever this process may run."""
    from di_kernels import pin_threads, threads_are_pinned

    pinned = threads_are_pinned()
    pin_threads(False)  # the calling thread moves at once
    try:
        yield
    finally:
        pin_threads(pinned)


def write_record(record: Any, as_json: bool, out: Path | None) -> None:
    """Write the record where it was asked for."""
    if out is not None:
        try:
            out.write_text(json.dumps(plain(record), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise CommandError(f"--out: {os_error_text(error, str(out))}") from error
    if as_json:
        print_json(record)


def print_reached(found: Sequence[Reached]) -> None:
    """A table of measurements with their shares of the ceilings."""
    table = Table(box=None, pad_edge=False)
    peers = any(reached.peer is not None for reached in found)
    left = ["family", "operation", "size"]
    right = ["rows", "threads", "µs", "GB/s", "GFLOP/s", "bound", "reached"]
    for name in left:
        table.add_column(name)
    for name in [*right, *(["peer", "its µs", "ratio"] if peers else [])]:
        table.add_column(name, justify="right")
    for reached in found:
        row = [
            reached.family,
            reached.name,
            reached.size,
            str(reached.rows),
            str(reached.threads),
            f"{1e6 * reached.seconds:,.1f}",
            f"{1e-9 * reached.bandwidth:.1f}",
            f"{1e-9 * reached.flops:.1f}" if reached.work.flops else "",
            *bound_and_share(reached),
        ]
        if reached.peer is not None and reached.peer_seconds is not None:
            row += [reached.peer, f"{1e6 * reached.peer_seconds:,.1f}", f"{reached.peer_ratio:.2f}"]
        table.add_row(*row)
    print_table(table)


def bound_and_share(found: Reached | ModelTiming) -> tuple[str, str]:
    """The ceiling that binds and the share of it, for a table; what other work disturbed has none."""
    if found.disturbed:
        return "", "disturbed"
    memory = found.ceilings.memory_bound(found.work)
    read, dot = f"{1e-9 * found.ceilings.read:.0f} GB/s", f"{1e-9 * found.ceilings.dot:.0f} GFLOP/s"
    return read if memory else dot, f"{100 * found.of_floor:.0f} %"


def load_text(load: ForeignLoad | None) -> str:
    """How much other processes did."""
    if load is None:
        return "other processes: unknown"
    advice = "; less than one core was free: measure again when it is quieter" if load.disturbs else ""
    return f"other processes kept {load.cores:.1f} of {load.of} cores busy{advice}"
