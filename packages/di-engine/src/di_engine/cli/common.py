"""What every command shares: one-line errors, exit codes and consoles."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from di_engine.cli.streams import takes_any_text, write_error
from di_engine.processors import usable_processors

EXIT_FAILURE = 1
"""What was asked for did not succeed: a prompt failed, a check missed, a checkpoint is bad."""
EXIT_USAGE = 2
"""The command line is wrong: an option, a value that is not allowed for anyone, for this model or for this machine, or
a path where nothing is."""

HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""How model hubs call a model."""

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""C0 and C1 control characters other than newline and tab."""

PIPE_WIDTH = 160
"""Columns of a table that is written to a file or a pipe."""
WIDEST = 1 << 16
"""Columns that no table needs."""


class CommandError(Exception):
    """Ends a command with a message on stderr and an exit code; for mistakes of the user, not for defects."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILURE) -> None:
        super().__init__(message)
        self.message, self.exit_code = message, exit_code


@contextmanager
def user_errors(exit_code: int = EXIT_FAILURE) -> Iterator[None]:
    """Turn the typed errors that bad input raises (all are ValueError or OSError) into a CommandError.

    Wrap only what reads input: inside, a ValueError means that the input is wrong. A setting that the model or the
    machine does not allow is always the command line's fault.
    """
    try:
        yield
    except OSError as error:
        raise CommandError(os_error_text(error), exit_code) from error
    except ValueError as error:
        raise CommandError(str(error), EXIT_USAGE if _is_setting(error) else exit_code) from error


def given_path(text: str | Path) -> Path:
    """Parser of a directory's option: of an empty text, such as a variable that is not set, typer makes the current
    directory."""
    if text == "":
        raise typer.BadParameter("got '', allowed: a path")
    return Path(text)


def os_error_text(error: OSError, subject: str | None = None) -> str:
    """What an OSError says to people; ``subject`` stands in for the file where the error names none."""
    name = subject if error.filename is None else error.filename
    return str(error) if name is None or error.strerror is None else f"{name}: {error.strerror}"


def _is_setting(error: ValueError) -> bool:
    """Whether the value of an option is at fault, and no file."""
    from di_cache import CacheConfigError

    from di_engine.errors import EngineConfigError

    return isinstance(error, EngineConfigError | CacheConfigError)


def check_place(option: str, path: Path) -> None:
    """Refuse a file that cannot be written there: what was computed for minutes must not be lost for a name."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        reason = "is a directory" if path.is_dir() else "there is no such directory"
        raise CommandError(f"{option}: {path}: {reason}", EXIT_USAGE)


def check_picture(option: str, path: Path) -> None:
    """The same for a picture, whose ending chooses its format."""
    from di_engine.simulator.plot import FORMATS

    if path.suffix not in FORMATS:
        allowed = f"names that end in {', '.join(FORMATS)}"
        raise CommandError(f"{option}: got {str(path)!r}, allowed: {allowed}", EXIT_USAGE)
    check_place(option, path)


def existing_model(text: str, *, or_config: bool = False) -> Path:
    """The directory of a shipped model's name, else the path itself, if anything is there.

    Args:
        text: what was given.
        or_config: whether a bare ``config.json`` will do too, for the message.

    Raises:
        CommandError: nothing is; a name such as ``org/name`` on a model hub gets the way to a directory.
    """
    from di_engine.models import resolve_model, shipped_models

    with user_errors(EXIT_USAGE):
        path = resolve_model(text)
    if os.path.exists(path):
        return path
    shipped = "".join(f" or {name!r}, which is shipped" for name in shipped_models())
    config = " or its config.json" if or_config else ""
    message = f"no model at {text}: a model is a checkpoint directory here{config}{shipped}"
    if HUB_NAME.fullmatch(text) and not text.endswith(".json"):
        message += (
            f"; to use one of a hub, download it first: hf download {text} --local-dir {Path(text).name}"
        )
    raise CommandError(message, EXIT_USAGE)


_Number = TypeVar("_Number", int, float)


def numbers(
    option: str, text: str, kind: Callable[[str], _Number], fits: Callable[[_Number], bool], allowed: str
) -> list[_Number]:
    """The numbers of an option, separated by commas.

    Args:
        option: its name.
        text: what was given.
        kind: ``int`` or ``float``.
        fits: whether a number is allowed.
        allowed: that, for the message.
    """
    try:
        found = [kind(item) for item in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(map(fits, found)):
        raise CommandError(f"{option}: got {text!r}, allowed: {allowed}", EXIT_USAGE)
    return found


def note_of_threads(count: int | None) -> None:
    """Say on stderr if so many threads, of ``--threads``, find no processor each. No mistake: results are the same."""
    usable = usable_processors()
    if count is not None and count > usable:
        slower = "slower" if count <= 16 * usable else "so much slower that it may take minutes"
        write_error(
            f"note: --threads {count}: more than the {usable} that this process may run at once, and {slower}\n"
        )


def printable(text: str) -> str:
    """``text`` with its control characters, newline and tab excepted, as ``\\x1b``: a terminal obeys the raw ones."""
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def stdout_console() -> Console:
    """Console for results: plain text, and wide enough for a table's rows, when it is not a terminal."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False)


def print_table(table: Table) -> None:
    """Write a table to stdout. Columns set to the right hold figures, which are never shortened: where they do not fit,
    text folds, and at last the table is wider than the terminal."""
    console = stdout_console()
    for column in table.columns:
        if column.justify == "right":
            column.no_wrap = True
            column.min_width = max(cell_len(str(cell)) for cell in (column.header, *column.cells))
        else:
            column.overflow = "fold"
    least = console.measure(table, options=console.options.update(width=WIDEST)).minimum
    console.width = max(console.width, least)
    console.print(table)


def print_json(value: Any) -> None:
    """Write one JSON object on one line of stdout, in ASCII unless its encoding has every character."""
    sys.stdout.write(json.dumps(plain(value), ensure_ascii=not takes_any_text()) + "\n")


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
