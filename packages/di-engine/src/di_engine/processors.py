"""How many processors this process may use."""

from __future__ import annotations

import os


def usable_processors() -> int:
    """Those that the system lets it run on, of all that the machine has where the system does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
