"""Argument checks shared by the operations; each names the argument, what it got and what is allowed."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator
from typing import SupportsFloat, SupportsIndex

import torch
from torch import Tensor

from di_kernels.errors import shown

ACTIVATIONS = (torch.bfloat16, torch.float32)
"""Element types of activations: bfloat16 carries the *release* numerics, float32 the *float32* numerics."""
MOST_COUNT = 2**31 - 1
"""Largest number of entries, of blocks or of anything else that an int32 tensor numbers."""
_LARGEST_FLOAT32 = torch.finfo(torch.float32).max


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


def check_strided(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless the elements of ``tensor`` lie in memory by its strides: not sparse, not nested."""
    if tensor.is_nested or tensor.layout is not torch.strided:
        layout = "nested" if tensor.is_nested else tensor.layout
        raise ValueError(f"{name} has layout {layout}; allowed: torch.strided")


def check_readable(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless Python can read the values of ``tensor``."""
    check_strided(name, tensor)
    if tensor.is_meta:
        raise ValueError(f"{name} is on device meta; it must be on a device that keeps values")


def check_place(name: str, value: object, device_type: str) -> None:
    """Raise ValueError unless every tensor of ``value`` is one that kernels of this device can read."""
    for place, tensor in tensors_of(name, value):
        check_strided(place, tensor)
        if tensor.device.type != device_type:
            raise ValueError(f"{place} is on device {tensor.device}; the operation runs on {device_type}")


def tensors_of(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    """The tensors that ``value`` is or holds, each with what a message calls it."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, tuple):
        fields = getattr(value, "_fields", None)  # of a named tuple
        for place, item in enumerate(value):
            yield from tensors_of(f"{name}.{fields[place]}" if fields else f"{name}[{place}]", item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors_of(f"{name}.{field.name}", getattr(value, field.name))


def check_result_type(name: str, dtype: torch.dtype) -> None:
    """Raise TypeError unless ``dtype`` is an element type of activations."""
    if dtype not in ACTIVATIONS:
        raise TypeError(f"{name} is {dtype}; allowed: {', '.join(map(str, ACTIVATIONS))}")


def check_shape(name: str, tensor: Tensor, *shape: int | None) -> None:
    """Raise ValueError unless ``tensor`` has this shape; ``None`` matches any size. No tensor: TypeError."""
    check_kind(name, tensor, Tensor)
    try:
        actual = tensor.shape
    except RuntimeError:  # nested tensors have none
        check_strided(name, tensor)
        raise
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
    """Raise TypeError unless ``value`` is a number of any kind, ValueError if no float is as large."""
    if type(value) is float:  # asked first: it is one nearly always
        return
    try:
        if isinstance(value, SupportsFloat) and not isinstance(value, bool):
            float(value)
            return
    except OverflowError:
        raise ValueError(f"{name} is {shown(value)}; it must be in the range of a float") from None
    except Exception:  # a tensor of two elements, or whatever else a caller's object does
        pass
    raise TypeError(f"{name} is {shown(value)}; it must be a number")


def check_epsilon(name: str, value: float) -> None:
    """Raise TypeError unless ``value`` is a number of any kind, ValueError unless it can be added to a mean square."""
    check_real(name, value)
    if not 0 <= value <= _LARGEST_FLOAT32:
        raise ValueError(f"{name} is {shown(value)}; allowed: 0 to {_LARGEST_FLOAT32}")


def check_integer(name: str, value: object, least: int = -(2**63), most: int = 2**63 - 1) -> None:
    """Raise TypeError unless ``value`` is an integer of any kind, ValueError unless it is within ``least..most``."""
    number = value if type(value) is int else _index(name, value)
    if not least <= number <= most:
        raise ValueError(f"{name} is {shown(value)}; allowed: {least} to {most}")


def _index(name: str, value: object) -> int:
    try:
        if isinstance(value, SupportsIndex) and not isinstance(value, bool):
            return operator.index(value)
    except Exception:  # a tensor of two elements, or whatever else a caller's object does
        pass
    raise TypeError(f"{name} is {shown(value)}; it must be an integer")


def check_positive(name: str, value: int, most: int = MOST_COUNT) -> None:
    """Raise ValueError unless ``value`` is within ``1..most``, TypeError unless it is an integer."""
    check_kind(name, value, int)
    if isinstance(value, bool):
        raise TypeError(f"{name} is {value}; it must be of type int")
    if value < 1:
        raise ValueError(f"{name} is {shown(value)}; it must be at least 1")
    if value > most:
        raise ValueError(f"{name} is {shown(value)}; it must be at most {most}")
