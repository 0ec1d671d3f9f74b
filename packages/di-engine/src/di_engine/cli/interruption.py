"""What Ctrl-C does: it ends the process at once until a command has something to clear up.

Python's own way, an exception between any two lines, is no good while modules are imported: it ends in a traceback
before the command line can catch it, and libraries that try an import and go on without it swallow it.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn

EXIT_INTERRUPTED = 130


def exit_at_once() -> None:
    """From now on Ctrl-C ends the process with exit code 130, without clearing up. Where it is ignored, it stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def raise_from_now_on() -> None:
    """Ctrl-C raises KeyboardInterrupt again: for commands that have imported what they need."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(EXIT_INTERRUPTED)
