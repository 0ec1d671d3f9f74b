"""The matrices of a model by name, and the model with other ones in their place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from di_kernels.ops.linear import LinearWeight
from di_kernels.ops.moe import ExpertWeights

T = TypeVar("T")
_BANK = ("w1", "w3", "w2")


def matrices(weights: object, name: str = "") -> Iterator[tuple[str, LinearWeight]]:
    """Every matrix in ``weights``, a typed record of :mod:`di_model.weights`, with its path ("layers.0.attn.wq_a")."""
    if isinstance(weights, LinearWeight):
        yield name, weights
    elif isinstance(weights, tuple):
        for place, item in enumerate(weights):
            yield from matrices(item, f"{name}.{place}")
    elif isinstance(weights, ExpertWeights):
        for expert in range(len(weights)):  # the three of an expert side by side
            for part in _BANK:
                yield f"{name}.{part}.{expert}", getattr(weights, part)[expert]
    elif dataclasses.is_dataclass(weights):
        for entry in dataclasses.fields(weights):
            yield from matrices(getattr(weights, entry.name), f"{name}.{entry.name}" if name else entry.name)


def replace_matrices(weights: T, change: Callable[[str, LinearWeight], LinearWeight]) -> T:
    """``weights`` with ``change(path, matrix)`` in place of every matrix; all else is shared."""
    return _replaced(weights, "", change)  # type: ignore[no-any-return]


def _replaced(value: Any, name: str, change: Callable[[str, LinearWeight], LinearWeight]) -> Any:
    if isinstance(value, LinearWeight):
        return change(name, value)
    if isinstance(value, tuple):
        return tuple(_replaced(item, f"{name}.{place}", change) for place, item in enumerate(value))
    if isinstance(value, ExpertWeights):
        # Anew: what a backend has bound to the old matrices does not belong to the new ones.
        return ExpertWeights(
            **{part: _replaced(getattr(value, part), f"{name}.{part}", change) for part in _BANK}
        )
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {
            entry.name: _replaced(
                getattr(value, entry.name), f"{name}.{entry.name}" if name else entry.name, change
            )
            for entry in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **changed)
    return value
