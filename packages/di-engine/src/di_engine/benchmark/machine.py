"""What a benchmark ran on, for its record."""

from __future__ import annotations

import datetime
import os
import platform
from dataclasses import dataclass

from di_kernels import instruction_set

from di_engine.benchmark.measure import last_level_cache
from di_engine.capacity import total_memory
from di_engine.processors import processor_facts, processor_name
from di_engine.versions import installed_versions


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, what of it is used, and when."""

    date: str
    """UTC, to the minute."""
    processor: str
    cores: int
    memory: int
    """Bytes, or 0 where the machine does not tell."""
    last_level_cache: int
    """Bytes."""
    instruction_set: str
    """That the kernels use."""
    versions: tuple[str, ...]


def this_machine() -> Machine:
    """As it is now."""
    family = processor_facts().get("cpu family", "?")
    return Machine(
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
        processor=f"{processor_name() or platform.machine()}, family {family}",
        cores=os.cpu_count() or 1,
        memory=total_memory() or 0,
        last_level_cache=last_level_cache(),
        instruction_set=instruction_set(),
        versions=tuple(map(str, installed_versions())),
    )
