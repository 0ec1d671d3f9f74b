"""Results have the same bits whatever type and device torch gives to tensors that are made without saying."""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from di_kernels import dispatch
from di_kernels.memory import allocate
from di_kernels.ops.linear import WeightFormat
from di_kernels.ops.rope import YarnScaling, rope_frequencies
from di_kernels.packing import pack, unpack
from di_kernels.testing import (
    Hostile,
    assert_same_bits,
    assert_same_values,
    hostile,
    random_weight,
    torch_default,
    with_gaps,
    with_row_gaps,
)
from torch import Tensor

from .calls import EVERYTHING

DEFAULTS = pytest.mark.parametrize("default", [torch.float64, torch.device("meta")], ids=str)


def filled(value: Any) -> Any:
    """A copy with numbers in place of the zeros, so that what is computed in another type is seen."""
    if isinstance(value, Tensor):
        return hostile(Hostile.NORMAL, *value.shape) if value.dtype == torch.float32 else value.clone()
    if isinstance(value, tuple):
        return type(value)(*map(filled, value)) if hasattr(value, "_fields") else tuple(map(filled, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{name: filled(getattr(value, name)) for name in fields})
    return value


def tensors(value: Any) -> list[Tensor]:
    parts = value if isinstance(value, tuple) else [value]
    return [part for part in parts if isinstance(part, Tensor)]


def run(operation: Callable[..., Any], arguments: list[Any]) -> list[Tensor]:
    """Its results, and the arguments that it may have changed."""
    arguments = copy.deepcopy(arguments)
    return tensors(operation(*arguments)) + [part for part in arguments if isinstance(part, Tensor)]


@DEFAULTS
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", list(EVERYTHING))
def test_an_operation_does_not_see_the_defaults(name: str, backend: str, default, monkeypatch) -> None:
    if backend == "reference":
        monkeypatch.setattr(dispatch, "_load", reference_of)
    operation, arguments = EVERYTHING[name]
    arguments = [filled(argument) for argument in arguments]
    expected = run(operation, arguments)
    with torch_default(default):
        actual = run(operation, arguments)
    for one, other in zip(actual, expected, strict=True):
        assert_same_values(one, other)


def reference_of(family: str, name: str, device_type: str) -> Callable[..., Any]:
    return getattr(importlib.import_module(f"di_kernels.reference.{family}"), name)  # type: ignore[no-any-return]


@DEFAULTS
def test_tables_of_rotation_do_not_see_the_defaults(default) -> None:
    yarn = YarnScaling(16, 32, 1, 4096)
    expected = rope_frequencies(64, 10_000.0, yarn)
    with torch_default(default):
        assert_same_bits(rope_frequencies(64, 10_000.0, yarn), expected)


@DEFAULTS
@pytest.mark.parametrize("form", list(WeightFormat))
def test_weights_do_not_see_the_defaults(form: WeightFormat, default) -> None:
    weight = random_weight(form, 32, 64)
    packed, plain = pack(weight), weight.dequantize()
    with torch_default(default):
        assert_same_bits(random_weight(form, 32, 64).data, weight.data)
        assert_same_bits(pack(weight).data, packed.data)
        assert_same_bits(unpack(packed).data, weight.data)
        assert_same_bits(weight.dequantize(), plain)
        assert allocate(5).device.type == "cpu"


@DEFAULTS
@pytest.mark.parametrize("kind", list(Hostile))
def test_tools_do_not_see_the_defaults(kind: Hostile, default) -> None:
    expected = hostile(kind, 3, 32)
    with torch_default(default):
        assert_same_bits(hostile(kind, 3, 32), expected)
        assert_same_bits(with_gaps(expected), expected)
        assert_same_bits(with_row_gaps(expected), expected)
