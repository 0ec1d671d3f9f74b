"""The processors of this machine: what they are, and how many of them this process may use."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def usable_processors() -> int:
    """Those that the system lets it run on, of all that the machine has where the system does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_facts() -> dict[str, str]:
    """What Linux tells about the first processor, by its names for it; empty on other systems."""
    try:
        return first_facts(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return {}


def first_facts(text: str) -> dict[str, str]:
    """The lines ``name: value`` of a file of the system, up to the first empty line."""
    pairs = (line.split(":", 1) for line in text.split("\n\n", 1)[0].splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def processor_name() -> str:
    """As the system has it; its kind, or an empty text, where there is none."""
    return processor_facts().get("model name") or platform.processor()
