"""What a benchmark ran on, for its record."""

from __future__ import annotations

import datetime
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from di_kernels import instruction_set

from di_engine.benchmark.measure import last_level_cache
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
    return Machine(
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
        processor=_processor(),
        cores=os.cpu_count() or 1,
        memory=_memory(),
        last_level_cache=last_level_cache(),
        instruction_set=instruction_set(),
        versions=tuple(map(str, installed_versions())),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    names = {name.strip(): value.strip() for name, value in fields.items()}
    return f"{names.get('model name', platform.machine())}, family {names.get('cpu family', '?')}"


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
