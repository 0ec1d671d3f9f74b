"""What Ctrl-C and SIGTERM do: they end the process at once until a command has something to clear up.

Python's own way, an exception between any two lines, is no good while modules are imported: it ends in a traceback
before the command line can catch it, and libraries that try an import and go on without it swallow it.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn

EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_TERMINATED = 128 + signal.SIGTERM
"""As shells call the ends of processes that these signals ended."""


class Terminated(SystemExit):
    """SIGTERM came."""


def exit_at_once() -> None:
    """From now on Ctrl-C and SIGTERM end the process with exit codes 130 and 143, without clearing up. Where one of
    them is ignored, it stays so."""
    for number, handlers in UNTOUCHED.items():
        if signal.getsignal(number) in handlers:
            signal.signal(number, _exit)


def raise_from_now_on() -> None:
    """Ctrl-C raises KeyboardInterrupt again, and SIGTERM :class:`Terminated`: for commands that have imported what they
    need."""
    for number, (_, raises) in UNTOUCHED.items():
        if signal.getsignal(number) is _exit:
            signal.signal(number, raises)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(128 + number)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(
        number, signal.SIG_IGN
    )  # whoever sends it twice, as timeout does, must not cut off the clearing up
    raise Terminated(EXIT_TERMINATED)


UNTOUCHED = {
    signal.SIGINT: (signal.default_int_handler, signal.default_int_handler),
    signal.SIGTERM: (signal.SIG_DFL, _terminate),
}
"""Handlers that Python begins with, and that raise an exception."""
