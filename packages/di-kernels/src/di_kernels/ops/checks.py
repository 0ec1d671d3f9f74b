"""Argument checks shared by the operations; each names the argument, what it got and what is allowed."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels.errors import shown

ACTIVATIONS = (torch.bfloat16, torch.float32)
"""Element types of activations: bfloat16 carries the *release* numerics, float32 the *float32* numerics."""


def check_kind(name: str, value: object, kind: type) -> None:
    """Raise TypeError unless ``value`` is an instance of ``kind``."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {shown(value)}; it must be of type {kind.__name__}")


def check_tensors(owner: str, values: object, *names: str) -> None:
    """Raise TypeError unless these attributes of the argument ``owner`` are tensors."""
    for name in names:
        value = getattr(values, name)
        if not isinstance(value, Tensor):  # asked first: every call of an operation would pay for the name
            check_kind(f"{owner}.{name}", value, Tensor)


def check_dtype(name: str, tensor: Tensor, *allowed: torch.dtype) -> None:
    """Raise TypeError unless ``tensor`` is a tensor of one of the allowed element types."""
    check_kind(name, tensor, Tensor)
    if tensor.dtype not in allowed:
        names = ", ".join(str(dtype) for dtype in allowed)
        raise TypeError(f"{name} has dtype {tensor.dtype}; allowed: {names}")


def check_result_type(name: str, dtype: torch.dtype) -> None:
    """Raise TypeError unless ``dtype`` is an element type of activations."""
    if dtype not in ACTIVATIONS:
        raise TypeError(f"{name} is {dtype}; allowed: {', '.join(map(str, ACTIVATIONS))}")


def check_shape(name: str, tensor: Tensor, *shape: int | None) -> None:
    """Raise ValueError unless ``tensor`` has this shape; ``None`` matches any size. No tensor: TypeError."""
    check_kind(name, tensor, Tensor)
    actual = tensor.shape
    # Asked first: several times as quick, and every call of an operation asks a few times.
    if actual == shape:
        return
    if len(actual) != len(shape) or any(w is not None and w != a for a, w in zip(actual, shape, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} has shape {list(actual)}; expected [{wanted}]")


def check_multiple(name: str, value: int, factor: int) -> None:
    """Raise ValueError unless ``value`` is a multiple of ``factor``."""
    if value % factor:
        raise ValueError(f"{name} is {value}; it must be a multiple of {factor}")


def check_number(name: str, value: float, least: float, most: float) -> None:
    """Raise ValueError unless ``value`` is within ``least..most``, TypeError unless it is a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {shown(value)}; it must be a number")
    if not least <= value <= most:
        raise ValueError(f"{name} is {shown(value)}; allowed: {least} to {most}")


def check_real(name: str, value: object) -> None:
    """Raise TypeError unless ``value`` is a number of any kind."""
    if not hasattr(value, "__float__"):
        raise TypeError(f"{name} is {shown(value)}; it must be a number")


def check_integer(name: str, value: object) -> None:
    """Raise TypeError unless ``value`` is an integer of any kind."""
    if not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {shown(value)}; it must be an integer")


def check_positive(name: str, value: int) -> None:
    """Raise ValueError unless ``value`` is at least 1, TypeError unless it is an integer."""
    check_kind(name, value, int)
    if value < 1:
        raise ValueError(f"{name} is {value}; it must be at least 1")
