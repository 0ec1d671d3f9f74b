"""Checks of arguments at the border to native code."""

import contextlib
import math
import numbers
import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from di_scheduler.errors import ConfigError

INT32_MAX = 2**31 - 1


def check_int(name: str, value: int, low: int, high: int = INT32_MAX) -> int:
    """The value as an int; raises `ConfigError` unless it is an integer (not a bool) in [low, high]."""
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not low <= number <= high:
        raise ConfigError(f"{name} must be an integer from {low} to {high}, got {value!r}")
    return number


def check_number(name: str, value: float) -> float:
    """The value as a float; raises `ConfigError` unless it is a finite real number (not a bool)."""
    number = math.nan
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            number = float(value)
    if not math.isfinite(number):
        raise ConfigError(f"{name} must be a finite number, got {value!r}")
    return number


def check_type(name: str, value: object, kind: type) -> None:
    """Raise `TypeError` unless `value` is a `kind`."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {value!r}")


def keep_int(settings: object, name: str, low: int, high: int = INT32_MAX) -> None:
    """Check an integer field of a frozen data class, and keep it as an int that nobody else can change."""
    object.__setattr__(settings, name, check_int(name, getattr(settings, name), low, high))


def keep_number(settings: object, name: str) -> None:
    """Check a number field of a frozen data class, and keep it as a float."""
    object.__setattr__(settings, name, check_number(name, getattr(settings, name)))


def check_array(name: str, value: object, dtype: type[np.generic]) -> NDArray[Any]:
    """Return `value` unchanged; raise `TypeError` unless it is an aligned, contiguous 1-D array of exactly `dtype`.

    Nothing is converted: a silent copy hides a caller's mistake and costs time on every step.
    """
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name} must be a numpy array of {dtype.__name__}, got {type(value).__name__}")
    if value.dtype != dtype or value.ndim != 1 or not (value.flags.c_contiguous and value.flags.aligned):
        raise TypeError(
            f"{name} must be an aligned, contiguous 1-D array of {dtype.__name__}, got {value.dtype} with shape "
            f"{value.shape}, strides {value.strides} and aligned={value.flags.aligned}"
        )
    return value


def check_outcome(
    tokens: object, counts: object, failed: object, drafts: object, confidences: object
) -> None:
    """Raise `TypeError` naming the first of a step's results that is no array of the right dtype, rank and layout."""
    check_array("tokens", tokens, np.int32)
    check_array("counts", counts, np.int32)
    if failed is not None:
        check_array("failed", failed, np.bool_)
    for name, rows, dtype in (("drafts", drafts, np.int32), ("confidences", confidences, np.float32)):
        if rows is None:
            continue
        if not isinstance(rows, np.ndarray):
            raise TypeError(f"{name} must be a numpy array of {dtype.__name__}, got {type(rows).__name__}")
        if rows.ndim != 2 or rows.dtype != dtype or not (rows.flags.c_contiguous and rows.flags.aligned):
            raise TypeError(
                f"{name} must be an aligned, contiguous 2-D array of {dtype.__name__}, got {rows.dtype} with shape "
                f"{rows.shape}, strides {rows.strides} and aligned={rows.flags.aligned}"
            )
