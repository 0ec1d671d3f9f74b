"""The record of a benchmark as JSON, and reading it back for a plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
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


def read_results(path: Path) -> list[dict[str, Any]]:
    """The results of a written record. Raises :class:`RecordError`, and OSError where the file cannot be read."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))["results"]
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path}: no record of a benchmark ({error})") from error
    if not isinstance(results, list) or not all(isinstance(each, dict) for each in results):
        raise RecordError(f"{path}: no record of a benchmark (results)")
    return results
