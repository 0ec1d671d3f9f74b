"""``di demo-checkpoint``: a small random checkpoint to try the engine with."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from di_engine.cli.common import EXIT_USAGE, CommandError, given_path, user_errors
from di_engine.cli.interruption import raise_from_now_on

NOTE_FILE = "RANDOM_WEIGHTS.txt"
"""Marks a checkpoint that nobody trained, so that ``di generate`` can say so and that another may take its place."""

NOTE = "The weights of this checkpoint are random: what it generates has no meaning."

CONFIG_FILE = "config.json"
"""Without it a directory is no checkpoint, whatever else it holds."""


def command(
    directory: Annotated[
        Path,
        typer.Argument(
            help="Where to write it: a new or empty directory, or an earlier demonstration.",
            parser=given_path,
        ),
    ],
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights.")] = 0,
) -> None:
    """Write a small random checkpoint in the released layout: every layer role, quantized, with a tokenizer.

    Nothing but an earlier demonstration is ever overwritten.
    """
    _check_replaceable(directory)
    with user_errors():
        _write(directory, seed)
    typer.echo(
        f"wrote {directory}; try: di generate {shlex.quote(str(directory))} --prompt 'The quick brown fox'"
    )


def note_of(directory: Path) -> str | None:
    """The note of a demonstration checkpoint; None for any other directory, one that may not be searched included."""
    return NOTE if os.path.isfile(directory / NOTE_FILE) else None


def _check_replaceable(directory: Path) -> None:
    """Somebody's checkpoint may have cost days, and differs from a demonstration by the marker only."""
    with user_errors(EXIT_USAGE):
        if not directory.exists() or note_of(directory) is not None or not any(directory.iterdir()):
            return
    raise CommandError(
        f"{directory} is not empty, and no demonstration that this command wrote: nothing was written; "
        "choose another directory",
        EXIT_USAGE,
    )


def _write(directory: Path, seed: int) -> None:
    """Write aside and move into place with ``config.json`` last: half a demonstration never looks complete."""
    from di_engine.demo import write_demo_checkpoint

    raise_from_now_on()
    directory.mkdir(parents=True, exist_ok=True)
    note = directory / NOTE_FILE
    note.write_text(NOTE + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=directory) as scratch:
        written = Path(scratch)
        write_demo_checkpoint(written, seed)
        (directory / CONFIG_FILE).unlink(missing_ok=True)
        for file in sorted(written.iterdir(), key=lambda file: file.name == CONFIG_FILE):
            shutil.copymode(note, file)  # safetensors makes files that only their owner may read
            file.replace(directory / file.name)
