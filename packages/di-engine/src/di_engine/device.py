"""Where steps are computed: one task after another, in the calling thread or in a thread of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, ParamSpec, Protocol, TypeVar

from di_engine.errors import StepTimeoutError

_P = ParamSpec("_P")
_T = TypeVar("_T")

_START_SECONDS = 60.0
"""More than any thread takes to start."""


class Device(Protocol):
    """Runs tasks in the order in which they were given."""

    def submit(self, task: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Queue a task. What it raises is raised by its future."""

    def close(self, timeout: float) -> None:
        """Give up what has not begun, and end within ``timeout`` seconds (StepTimeoutError if that fails)."""


class CallingThread:
    """Runs each task at once. Ctrl-C goes through it to the caller."""

    def submit(self, task: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Run a task; its future is done."""
        future: Future[_T] = Future()
        try:
            future.set_result(task(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self, timeout: float) -> None:
        """There is nothing to end."""


class DeviceThread:
    """Runs tasks in one thread, which ends with ``close``, and at the latest with the process.

    Kernels release the interpreter lock, so the host works while a step is computed.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="di-device")
        # The thread starts now: an interruption in the middle of its start would later give the executor a second one.
        self._executor.submit(_nothing).result(_START_SECONDS)
        self._unfinished: list[Future[Any]] = []

    def submit(self, task: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Queue a task."""
        future = self._executor.submit(task, *args, **kwargs)
        self._unfinished = [*(each for each in self._unfinished if not each.done()), future]
        return future

    def close(self, timeout: float) -> None:
        """End the thread when the task that it is at is over."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        running = [each for each in self._unfinished if not each.done()]
        self._unfinished = []
        if wait(running, timeout).not_done:
            raise StepTimeoutError("the device thread to end", timeout)


def _nothing() -> None:
    """The first task of the thread."""
