"""Traces: when requests arrive, and how long they are."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from di_engine.simulator._checks import is_number
from di_engine.simulator.errors import TraceError
from di_engine.simulator.limits import MOST_SECONDS, MOST_TOKENS

MOST = 2**31 - 1
"""The largest number of a user or class in a trace."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """n requests in order of arrival. The index of a request is its id in the simulation."""

    arrival: NDArray[np.float64]
    """[n] seconds, ascending."""
    prompt: NDArray[np.int32]
    """[n] prompt tokens, at least 1."""
    output: NDArray[np.int32]
    """[n] tokens to generate, at least 1."""
    priority: NDArray[np.int32]
    """[n] classes: a lower number goes first."""
    user: NDArray[np.int32]
    """[n] numbers of users, at least 0."""

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def num_users(self) -> int:
        """One more than the largest number of a user, 0 without requests."""
        return int(self.user.max(initial=-1)) + 1

    @property
    def longest(self) -> int:
        """Prompt and output tokens of the longest request, 0 without requests."""
        return int((self.prompt.astype(np.int64) + self.output).max(initial=0))


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace; fields as in :class:`Trace`."""

    arrival: float
    prompt: int
    output: int
    priority: int = 0
    user: int = 0


def make_trace(rows: Iterable[TraceRow]) -> Trace:
    """The trace of some requests: by arrival, those that arrive together in the order given."""
    ordered = sorted(rows, key=lambda row: row.arrival)
    return Trace(
        np.array([row.arrival for row in ordered], np.float64),
        np.array([row.prompt for row in ordered], np.int32),
        np.array([row.output for row in ordered], np.int32),
        np.array([row.priority for row in ordered], np.int32),
        np.array([row.user for row in ordered], np.int32),
    )


def read_trace(path: Path) -> Trace:
    """The trace of a JSONL file: one object a line with ``arrival`` (seconds), ``prompt`` and ``output`` (tokens), and
    if wanted ``priority`` and ``user``. Lines may be in any order; empty ones are skipped.

    Users may have any number: they are renumbered from 0 in the order of their numbers, so that a trace of few users
    costs little. Raises :class:`TraceError` naming line and field, and OSError when the file cannot be read.
    """
    with path.open("rb") as file:
        rows = [parse_row(line, number) for number, line in enumerate(file, 1) if line.strip()]
    trace = make_trace(rows)
    compact = np.unique(trace.user, return_inverse=True)[1].astype(np.int32)
    return Trace(trace.arrival, trace.prompt, trace.output, trace.priority, compact)


def parse_row(line: bytes, number: int) -> TraceRow:
    """The request of line ``number``. Raises :class:`TraceError`."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        text = line.decode("utf-8", "replace").rstrip("\n")
        raise TraceError(number, "", text, f"one JSON object ({error})") from error
    if not isinstance(values, dict):
        raise TraceError(number, "", values, "a JSON object")
    known = ("arrival", "prompt", "output", "priority", "user")
    for name in values:
        if name not in known:
            raise TraceError(number, name, values[name], f"no field but {', '.join(known)}")
    return TraceRow(
        _seconds(values, number),
        _integer(values, "prompt", number, 1, MOST_TOKENS),
        _integer(values, "output", number, 1, MOST_TOKENS),
        _integer(values, "priority", number, -MOST, MOST, default=0),
        _integer(values, "user", number, 0, MOST, default=0),
    )


def _seconds(values: dict[str, object], line: int) -> float:
    value = values.get("arrival")
    if not is_number(value) or not 0 <= value <= MOST_SECONDS:
        raise TraceError(line, "arrival", value, f"seconds from 0 to {MOST_SECONDS:.12g}")
    return float(value)


def _integer(
    values: dict[str, object], field: str, line: int, least: int, most: int, default: int | None = None
) -> int:
    value = values.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise TraceError(line, field, value, f"an integer from {least} to {most}")
    return value
