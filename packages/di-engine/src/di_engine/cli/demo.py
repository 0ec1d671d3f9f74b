"""``di demo-checkpoint``: a small random checkpoint to try the engine with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from di_engine.cli.common import user_errors

NOTE_FILE = "RANDOM_WEIGHTS.txt"
"""Marks a checkpoint that nobody trained, so that ``di generate`` can say so."""

NOTE = "The weights of this checkpoint are random: what it generates has no meaning."


def command(
    directory: Annotated[Path, typer.Argument(help="Where to write it; created if need be.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights.")] = 0,
) -> None:
    """Write a small random checkpoint in the released layout: every layer role, quantized, with a tokenizer."""
    from di_model.testing import write_checkpoint

    with user_errors():
        write_checkpoint(directory, seed=seed)
        (directory / NOTE_FILE).write_text(NOTE + "\n", encoding="utf-8")
    typer.echo(f"wrote {directory}")


def note_of(directory: Path) -> str | None:
    """The note of a demonstration checkpoint; None for any other directory."""
    return NOTE if (directory / NOTE_FILE).is_file() else None
