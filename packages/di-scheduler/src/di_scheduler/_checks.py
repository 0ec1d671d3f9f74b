"""Checks of arguments at the border to native code."""

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from di_scheduler.errors import ConfigError

INT32_MAX = 2**31 - 1


def check_int(name: str, value: int, low: int, high: int = INT32_MAX) -> None:
    """Raise `ConfigError` unless `value` is an integer (not a bool) in [low, high]."""
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not low <= number <= high:
        raise ConfigError(f"{name} must be an integer from {low} to {high}, got {value!r}")


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
