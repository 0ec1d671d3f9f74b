"""The standard streams as a command can rely on them: open, and able to take any text."""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import TextIO


def prepare() -> None:
    """Open what is closed, escape what an encoding lacks, and refuse input that is not in the stream's encoding.

    A closed descriptor would be given to the next file that is opened, and output would end up in that file.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream, errors in (
        (sys.stdin, "strict"),
        (sys.stdout, "backslashreplace"),
        (sys.stderr, "backslashreplace"),
    ):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def finish() -> bool:
    """Flush both outputs, and whether standard output took it all. Python has nothing left to flush at exit then."""
    _flush_or_drop(sys.stderr)
    return _flush_or_drop(sys.stdout)


def _flush_or_drop(stream: TextIO) -> bool:
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True


def takes_any_text() -> bool:
    """Whether the encoding of standard output has every character."""
    encoding = sys.stdout.encoding  # None: a stream in memory, which holds text as it is
    return encoding is None or codecs.lookup(encoding).name.startswith("utf")


def write_error(text: str) -> None:
    """Write to standard error. When that fails there is nobody left to tell, and results go before messages."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        return
