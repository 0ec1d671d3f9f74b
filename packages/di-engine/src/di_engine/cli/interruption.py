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
    for number, untouched in UNTOUCHED.items():
        if signal.getsignal(number) in (untouched, _raise):
            signal.signal(number, _exit)


def raise_from_now_on() -> None:
    """Ctrl-C raises KeyboardInterrupt again, and SIGTERM :class:`Terminated`: for commands that have imported what they
    need. Only the first of them does anything: those that follow must not cut off the clearing up."""
    for number in UNTOUCHED:
        if signal.getsignal(number) is _exit:
            signal.signal(number, _raise)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(128 + number)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    for each in UNTOUCHED:
        if signal.getsignal(each) is _raise:
            signal.signal(each, _silence)
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated(EXIT_TERMINATED)


def _silence(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN: Python complains where one that has come already finds that."""


UNTOUCHED = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""Handlers that Python begins with."""
