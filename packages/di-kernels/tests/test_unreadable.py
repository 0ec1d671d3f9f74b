"""Tensors that no kernel can read, sparse or on another device: refused by name, in every place."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from di_kernels import KernelUnavailableError
from di_kernels.ops.checks import tensors_of
from di_kernels.ops.linear import LinearWeight
from di_kernels.ops.moe import ExpertWeights
from torch import Tensor

from .calls import EVERYTHING, weight

LAYOUTS = {
    "sparse": lambda tensor: tensor.to_sparse(),
    "compressed": lambda tensor: tensor.to_sparse_csr(),
    "nested": lambda tensor: torch.nested.nested_tensor([tensor[0], tensor[0]]),
    "jagged": lambda tensor: torch.nested.nested_tensor([tensor, tensor], layout=torch.jagged),
    "mkldnn": lambda tensor: tensor.to_mkldnn(),
}
PLACES = [
    pytest.param(name, place, id=f"{name}-{place}")
    for name, (_, arguments) in EVERYTHING.items()
    for place, argument in enumerate(arguments)
    if isinstance(argument, Tensor)
]


def unreadable(tensor: Tensor) -> Iterator[Tensor]:
    for make in LAYOUTS.values():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of layouts in beta
                made = make(tensor)
        except (RuntimeError, ValueError, IndexError):  # not every shape and type has one
            continue
        if made.dtype == tensor.dtype:
            yield made


@pytest.mark.parametrize(("name", "place"), PLACES)
def test_a_layout_without_strides_is_refused_by_name(name: str, place: int) -> None:
    operation, arguments = EVERYTHING[name]
    wrongs = list(unreadable(arguments[place]))
    assert wrongs
    for wrong in wrongs:
        message = r"^[a-z_]+ has (layout (nested|torch\.\w+); allowed: torch\.strided|shape .*; expected .*)$"
        with pytest.raises(ValueError, match=message):
            operation(*arguments[:place], wrong, *arguments[place + 1 :])


@pytest.mark.parametrize(("name", "place"), PLACES)
def test_another_device_is_refused_by_name(name: str, place: int) -> None:
    operation, arguments = EVERYTHING[name]
    if name in ("encode_records-plain", "decode_records-plain", "rope_rows"):
        return  # made of torch's own operations, they compute where the tensors are
    with pytest.raises(
        (KernelUnavailableError, ValueError), match=r"^(operation \w|[a-z_0-9]+ is on device meta; )"
    ):
        operation(*arguments[:place], arguments[place].to("meta"), *arguments[place + 1 :])


HOLDERS = [
    pytest.param(name, place, id=f"{name}-{place}")
    for name, (_, arguments) in EVERYTHING.items()
    for place, argument in enumerate(arguments)
    if dataclasses.is_dataclass(argument) and not isinstance(argument, LinearWeight | ExpertWeights)
]


@pytest.mark.parametrize(("name", "place"), HOLDERS)
def test_what_is_held_is_refused_by_name(name: str, place: int) -> None:
    operation, arguments = EVERYTHING[name]
    holder = arguments[place]
    for field, tensor in tensors_of("", holder):
        for wrong in (tensor.to_sparse(), tensor.to("meta")):
            changed = dataclasses.replace(holder, **{field[1:]: wrong})
            message = rf"{re.escape(field[1:])} (has layout torch.sparse_coo; allowed|is on device meta; )"
            with pytest.raises(ValueError, match=message):
                operation(*arguments[:place], changed, *arguments[place + 1 :])


def test_a_weight_on_another_device_is_refused_by_name() -> None:
    def moved(*shape: int) -> LinearWeight:
        return LinearWeight.dense(weight(*shape).data.to("meta"))

    def refused(name: str, place: int, wrong: Any, message: str) -> None:
        operation, arguments = EVERYTHING[name]
        with pytest.raises(ValueError, match=message):
            operation(*arguments[:place], wrong, *arguments[place + 1 :])

    refused("linear", 1, moved(4, 8), r"^weight\.data is on device meta; the operation runs on cpu$")
    bank = ExpertWeights((weight(4, 8),), (weight(4, 8),), (moved(8, 4),))
    refused("experts", 3, bank, r"^bank\.w2\[0\]\.data is on device meta; the operation runs on cpu$")
