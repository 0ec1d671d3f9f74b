"""Checks of settings, which name what is wrong."""

from __future__ import annotations

from typing import TypeGuard

from di_engine.simulator.errors import SimulationConfigError


def check_integer(field: str, value: int, least: int, most: int) -> None:
    """Raise :class:`SimulationConfigError` unless ``value`` is an integer from ``least`` to ``most``."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise SimulationConfigError(field, value, f"an integer from {least} to {most}")


def check_number(field: str, value: float, least: float, most: float) -> None:
    """Raise :class:`SimulationConfigError` unless ``value`` is a number from ``least`` to ``most``."""
    if not is_number(value) or not least <= value <= most:
        raise SimulationConfigError(field, value, f"a number from {least:.12g} to {most:.12g}")


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a number that is no bool. It may be NaN, or an integer that no float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool)
