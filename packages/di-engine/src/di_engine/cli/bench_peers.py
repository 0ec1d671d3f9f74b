"""What ``--peer-python`` of the benchmarks has in common."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from di_engine.cli.common import EXIT_USAGE, CommandError


def interpreter(path: Path | None) -> Path | None:
    """Parser of the option: a mistake is told at once, not after minutes of measurements."""
    if path is not None and shutil.which(path) is None:
        allowed = "a Python that can be run; there is none"
        raise CommandError(f"--peer-python: got {str(path)!r}, allowed: {allowed}", EXIT_USAGE)
    return path


def told_failures(failures: Sequence[str]) -> None:
    """End the command if peers could not be measured; call it when everything else has been written."""
    if failures:
        reasons = "; ".join(dict.fromkeys(failures))
        raise CommandError(f"--peer-python: not measured beside a peer: {reasons}")
