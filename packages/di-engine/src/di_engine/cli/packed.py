"""``di packed``: what a directory of packed weights holds, and removing what nobody uses."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from di_engine.cli.common import (
    EXIT_FAILURE,
    EXIT_USAGE,
    CommandError,
    bytes_text,
    given_path,
    print_json,
    printable,
    stdout_console,
    user_errors,
)

if TYPE_CHECKING:
    from di_model.packed_cache import KeptFile

DAY = 86400.0


def command(
    directory: Annotated[
        Path, typer.Argument(help="What --packed-directory was given as.", parser=given_path)
    ],
    remove_unused: Annotated[
        float | None,
        typer.Option(
            min=0.0, metavar="DAYS", help="Remove files that no engine has opened for so many days; 0: all."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """List the files of packed weights in a directory: their sizes, when they were last used, what they were made from.

    A file is named by what is in it. When a checkpoint changes, it gets another one, and the old one stays until it is
    removed here. Removing one never hurts: an engine that has it open keeps it, and the next start writes it anew.
    An engine of a user who may not write there cannot leave word that it used a file.

    Exits with 1 when a file could not be removed.
    """
    from di_model.packed_cache import kept_files
    from di_model.packed_cache import remove_unused as remove

    with user_errors(EXIT_USAGE):
        kept = kept_files(directory)
        due = [] if remove_unused is None else remove(directory, DAY * remove_unused)
    removed = [file for file in due if file.problem is None]
    failed = {file.path: file for file in due if file.problem is not None}
    gone = {file.path for file in removed}
    left = [failed.get(file.path, file) for file in kept if file.path not in gone]
    if as_json:
        print_json({"kept": left, "removed": removed})
    else:
        _print(left, removed)
    if failed:
        reasons = "; ".join(f"{path.name}: {file.problem}" for path, file in failed.items())
        raise CommandError(f"not removed: {reasons}", EXIT_FAILURE)


def _print(left: list[KeptFile], removed: list[KeptFile]) -> None:
    for file in removed:
        typer.echo(f"removed {file.path} ({bytes_text(file.nbytes)})")
    if left:
        stdout_console().print(_table(left))
    typer.echo(
        f"{len(left)} {'file' if len(left) == 1 else 'files'}, {bytes_text(sum(file.nbytes for file in left))}"
    )


def _table(files: list[KeptFile]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("file", "size", "last used", "made from"):
        table.add_column(name, justify="right" if name == "size" else "left", overflow="fold")
    for file in files:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(file.used))
        unfinished = " (not finished)" if file.path.suffix == ".part" else ""
        origin = file.problem or file.checkpoint or "unknown"
        table.add_row(file.path.name + unfinished, bytes_text(file.nbytes), used, escape(printable(origin)))
    return table
