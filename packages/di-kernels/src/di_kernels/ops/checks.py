"""Argument checks shared by the operations; each names the argument, what it got and what is allowed."""

from __future__ import annotations

import torch
from torch import Tensor

ACTIVATIONS = (torch.bfloat16, torch.float32)
"""Element types of activations: bfloat16 carries the *release* numerics, float32 the *float32* numerics."""


def check_dtype(name: str, tensor: Tensor, *allowed: torch.dtype) -> None:
    """Raise TypeError unless ``tensor`` has one of the allowed element types."""
    if tensor.dtype not in allowed:
        names = ", ".join(str(dtype) for dtype in allowed)
        raise TypeError(f"{name} has dtype {tensor.dtype}; allowed: {names}")


def check_result_type(name: str, dtype: torch.dtype) -> None:
    """Raise TypeError unless ``dtype`` is an element type of activations."""
    if dtype not in ACTIVATIONS:
        raise TypeError(f"{name} is {dtype}; allowed: {', '.join(map(str, ACTIVATIONS))}")


def check_shape(name: str, tensor: Tensor, *shape: int | None) -> None:
    """Raise ValueError unless ``tensor`` has this shape; ``None`` matches any size."""
    actual = tuple(tensor.shape)
    if len(actual) != len(shape) or any(w is not None and w != a for a, w in zip(actual, shape, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} has shape {list(actual)}; expected [{wanted}]")


def check_multiple(name: str, value: int, factor: int) -> None:
    """Raise ValueError unless ``value`` is a multiple of ``factor``."""
    if value % factor:
        raise ValueError(f"{name} is {value}; it must be a multiple of {factor}")


def check_positive(name: str, value: int) -> None:
    """Raise ValueError unless ``value`` is at least 1."""
    if value < 1:
        raise ValueError(f"{name} is {value}; it must be at least 1")
