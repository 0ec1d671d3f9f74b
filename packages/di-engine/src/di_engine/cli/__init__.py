"""The command line ``di``. Imports next to nothing: what takes long is imported once Ctrl-C is safe."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from di_engine.cli import interruption

__all__ = ["main", "run"]


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: that of the process) and return its exit code.

    0: all is well; 1: what was asked for did not succeed; 2: the command line is wrong, a value that the model or the
    machine does not allow included; 130: interrupted; 143: terminated.
    """
    from di_engine.cli.application import run

    return run(arguments)


def main() -> None:
    """Entry point of the ``di`` script."""
    interruption.exit_at_once()
    from di_engine.cli import streams

    streams.prepare()
    exit_code = run()
    interruption.exit_at_once()  # nothing is left to clear up
    sys.exit(exit_code if streams.finish() else exit_code or 1)
