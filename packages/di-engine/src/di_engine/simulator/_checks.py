"""Checks of settings, which name what is wrong."""

from __future__ import annotations

import math

from di_engine.simulator.errors import SimulationConfigError


def check_integer(field: str, value: int, least: int, most: int | None = None) -> None:
    """Raise :class:`SimulationConfigError` unless ``value`` is an integer from ``least`` to ``most``."""
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not fits or (most is not None and value > most):
        bound = f"an integer from {least} to {most}" if most is not None else f"an integer, at least {least}"
        raise SimulationConfigError(field, value, bound)


def check_positive(field: str, value: float) -> None:
    """Raise :class:`SimulationConfigError` unless ``value`` is finite and above 0."""
    if not is_finite(value) or value <= 0:
        raise SimulationConfigError(field, value, "a finite number above 0")


def check_at_least(field: str, value: float, least: float) -> None:
    """Raise :class:`SimulationConfigError` unless ``value`` is finite and at least ``least``."""
    if not is_finite(value) or value < least:
        raise SimulationConfigError(field, value, f"a finite number, at least {least:g}")


def is_finite(value: object) -> bool:
    """Whether it is a finite number that is no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
