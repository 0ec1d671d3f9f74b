"""What every command shares: one-line errors, exit codes and consoles."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

EXIT_FAILURE = 1
"""What was asked for did not succeed: a prompt failed, a check missed, a checkpoint is bad."""
EXIT_USAGE = 2
"""The command line itself is wrong."""
EXIT_INTERRUPTED = 130

PIPE_WIDTH = 160
"""Columns of a table that is written to a file or a pipe."""


class CommandError(Exception):
    """Ends a command with a message on stderr and an exit code; for mistakes of the user, not for defects."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILURE) -> None:
        super().__init__(message)
        self.message, self.exit_code = message, exit_code


@contextmanager
def user_errors(exit_code: int = EXIT_FAILURE) -> Iterator[None]:
    """Turn the typed errors that bad input raises (all are ValueError or OSError) into a CommandError.

    Wrap only what reads input: inside, a ValueError means that the input is wrong.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        raise CommandError(str(error), exit_code) from error


def stdout_console() -> Console:
    """Console for results: plain text, and wide enough for a table's rows, when it is not a terminal."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False)


def print_json(value: Any) -> None:
    """Write one JSON object on one line of stdout."""
    sys.stdout.write(json.dumps(plain(value), ensure_ascii=False) + "\n")


def plain(value: Any) -> Any:
    """Dataclasses, enumerations, paths and tuples as JSON has them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, str) else value.name.lower()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def bytes_text(count: int) -> str:
    """A byte count for people: ``3,128,928 B`` up to a MiB, else also in binary units."""
    if count < 1 << 20:
        return f"{count:,} B"
    unit, shift = ("GiB", 30) if count >= 1 << 30 else ("MiB", 20)
    return f"{count:,} B ({count / (1 << shift):,.1f} {unit})"
