"""The record of a benchmark as JSON, and reading it back for a picture or a document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from di_engine.benchmark.machine import Machine
from di_engine.benchmark.measure import Reached
from di_engine.benchmark.timing import ForeignLoad


def reached_record(reached: Reached) -> dict[str, Any]:
    """A measurement with what follows from it."""
    floor = reached.ceilings.floor(reached.work)
    return {
        "family": reached.family,
        "name": reached.name,
        "size": reached.size,
        "rows": reached.rows,
        "threads": reached.threads,
        "read_bytes": reached.work.read,
        "flops": reached.work.flops,
        "seconds": reached.seconds,
        "read_ceiling": reached.ceilings.read,
        "dot_ceiling": reached.ceilings.dot,
        "floor_seconds": floor,
        "bound": "memory" if reached.ceilings.memory_bound(reached.work) else "dot",
        "of_floor": reached.of_floor,
        "rounds": reached.rounds,
        "disturbed": reached.disturbed,
        "peer": reached.peer,
        "peer_seconds": reached.peer_seconds,
        "peer_read_bytes": reached.peer_read,
        "peer_ratio": reached.peer_ratio,
    }


@dataclass(frozen=True, slots=True)
class Record:
    """All of a run."""

    benchmark: str
    machine: Machine
    results: Sequence[dict[str, Any]]
    foreign_load: ForeignLoad | None


class RecordError(ValueError):
    """A file is no record of a benchmark; the message names it."""


RESULT_FIELDS = ("family", "name", "threads")
"""That every result has, whatever was measured."""


def read_record(path: Path) -> dict[str, Any]:
    """A written :class:`Record`. Raises :class:`RecordError`, and OSError where the file cannot be read."""
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: no record of a benchmark: not JSON: {error}") from error
    _check_fields(path, "the file", record, [field.name for field in fields(Record)])
    _check_fields(path, "machine", record["machine"], [field.name for field in fields(Machine)])
    if not isinstance(record["results"], list):
        raise RecordError(f"{path}: no record of a benchmark: results is no list")
    for index, result in enumerate(record["results"]):
        _check_fields(path, f"results[{index}]", result, RESULT_FIELDS)
    return record


def _check_fields(path: Path, name: str, value: object, needed: Sequence[str]) -> None:
    if not isinstance(value, dict):
        raise RecordError(f"{path}: no record of a benchmark: {name} is no object")
    missing = [field for field in needed if field not in value]
    if missing:
        raise RecordError(f"{path}: no record of a benchmark: {name} lacks {', '.join(missing)}")
