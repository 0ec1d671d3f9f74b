"""How much of a time is spent inside the native module of the kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from di_kernels import _native

CLASSES = ("CachedPlan", "ModelPlan")
"""Classes of the native module whose methods compute."""


class NativeClock:
    """Counts the seconds inside native calls, from one reading to the next."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, counted."""

        def call(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self._seconds += time.perf_counter() - start

        return call

    def read(self) -> float:
        """Seconds since the last reading."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


@contextmanager
def native_clock() -> Iterator[NativeClock]:
    """A clock on every function of the native module, and on every plan that is built inside."""
    clock = NativeClock()
    before = {name: getattr(_native, name) for name in dir(_native) if _computes(name)}
    before |= {name: getattr(_native, name) for name in CLASSES}
    try:
        for name, value in before.items():
            setattr(_native, name, _timed_class(clock, value) if name in CLASSES else clock.timed(value))
        yield clock
    finally:
        for name, value in before.items():
            setattr(_native, name, value)


def _computes(name: str) -> bool:
    value = getattr(_native, name)
    return not name.startswith("_") and callable(value) and not isinstance(value, type)


def _timed_class(clock: NativeClock, base: type) -> type:
    """A subclass whose methods are counted."""
    methods = {
        name: clock.timed(getattr(base, name))
        for name in dir(base)
        if not name.startswith("_") and callable(getattr(base, name))
    }
    return type(base.__name__, (base,), methods)
