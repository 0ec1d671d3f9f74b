"""Where steps are computed: one task after another, in the calling thread or in a thread of their own."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from di_engine.errors import ForkedProcessError, StepTimeoutError

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)

EXIT_SECONDS = 5.0
"""What the end of the process grants a task to finish: one that comes back to the interpreter later would abort it."""


class Pending(Protocol[_T_co]):
    """A task that was given to a device: what steps use of ``concurrent.futures.Future``."""

    def result(self, timeout: float | None = None) -> _T_co:
        """What the task returned; raises what it raised, CancelledError, or TimeoutError after ``timeout`` seconds."""

    def done(self) -> bool:
        """Whether it has run or was cancelled."""

    def cancel(self) -> bool:
        """Do not run it; False if it runs or has run."""

    def cancelled(self) -> bool:
        """Whether it was cancelled."""


class Device(Protocol):
    """Runs tasks in the order in which they were given."""

    def submit(self, task: Callable[[], _T]) -> Pending[_T]:
        """Queue a task. What it raises is raised by its result; one that is cancelled before is not run."""

    def close(self, timeout: float) -> None:
        """End behind the last task, within ``timeout`` seconds (StepTimeoutError if that fails)."""


class Finished(Generic[_T]):
    """A task that has run. It has no locks: making those costs more than the rest of a task's way."""

    __slots__ = ("_error", "_value")

    def __init__(self, task: Callable[[], _T]) -> None:
        self._error: Exception | None = None
        try:
            self._value = task()
        except Exception as error:
            self._error = error

    def result(self, timeout: float | None = None) -> _T:
        """What it returned, or raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._value

    def done(self) -> bool:
        """True."""
        return True

    def cancel(self) -> bool:
        """False: it has run."""
        return False

    def cancelled(self) -> bool:
        """False."""
        return False


class CallingThread:
    """Runs each task at once. Ctrl-C goes through it to the caller."""

    def submit(self, task: Callable[[], _T]) -> Pending[_T]:
        """Run a task."""
        return Finished(task)

    def close(self, timeout: float) -> None:
        """There is nothing to end."""


class DeviceThread:
    """Runs tasks in one thread, which ends with ``close``, and at the latest with the process: a task that hangs holds
    up neither for longer than it is told to wait.

    Kernels release the interpreter lock, so the host works while a step is computed.
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._tasks,), name="di-device", daemon=True)
        self._thread.start()
        self._process = os.getpid()
        atexit.register(self._end, EXIT_SECONDS)

    def submit(self, task: Callable[[], _T]) -> Future[_T]:
        """Queue a task. Raises ForkedProcessError in a child of the process that made this."""
        if os.getpid() != self._process:
            raise ForkedProcessError
        future: Future[_T] = Future()
        self._tasks.put(partial(_run, task, future))
        return future

    def close(self, timeout: float) -> None:
        """End the thread when the task that it is at is over."""
        atexit.unregister(self._end)
        if not self._end(timeout):
            raise StepTimeoutError("the device thread to end", timeout)

    def _end(self, timeout: float) -> bool:
        if os.getpid() != self._process:
            return True
        self._tasks.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()


def _work(tasks: SimpleQueue[Callable[[], None] | None]) -> None:
    """What the thread does. It keeps nothing of a task while it waits for the next."""
    while (task := tasks.get()) is not None:
        task()
        del task


def _run(task: Callable[[], _T], future: Future[_T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(task())
    except BaseException as error:
        future.set_exception(error)
