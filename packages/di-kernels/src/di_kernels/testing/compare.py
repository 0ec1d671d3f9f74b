"""Bitwise comparison of tensors, with messages that show the first difference."""

from __future__ import annotations

import torch
from torch import Tensor

_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _check_like(actual: Tensor, expected: Tensor) -> None:
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        raise AssertionError(
            f"got {actual.dtype} {list(actual.shape)}, expected {expected.dtype} {list(expected.shape)}"
        )


def _fail_at(different: Tensor, actual: Tensor, expected: Tensor) -> None:
    count = int(different.sum())
    if count:
        index = tuple(int(i) for i in different.nonzero()[0])
        raise AssertionError(
            f"{count} of {different.numel()} elements differ, first at {list(index)}: "
            f"{actual[index].item()!r} instead of {expected[index].item()!r}"
        )


def _bits(tensor: Tensor) -> Tensor:
    if tensor.dtype == torch.bool:
        return tensor.to(torch.uint8)
    return tensor.contiguous().view(_INTEGER_OF_SIZE[tensor.element_size()])


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    """Raise AssertionError unless type, shape and every bit agree (zeros by sign, NaNs by payload)."""
    _check_like(actual, expected)
    _fail_at(_bits(actual) != _bits(expected), actual, expected)


def assert_same_values(actual: Tensor, expected: Tensor) -> None:
    """Like :func:`assert_same_bits`, but any NaN equals any NaN: implementations choose their payload."""
    _check_like(actual, expected)
    different = _bits(actual) != _bits(expected)
    if actual.dtype.is_floating_point:
        different &= ~(actual.isnan() & expected.isnan())
    _fail_at(different, actual, expected)


def assert_telling(expected: Tensor) -> None:
    """Raise AssertionError unless comparing with ``expected`` can fail: every value finite, most of them not zero.

    A test of equal bits compares its expectation with this first: NaN equals NaN whatever was computed.
    """
    if not bool(expected.isfinite().all()):
        raise AssertionError(
            f"{int((~expected.isfinite()).sum())} of {expected.numel()} elements are not finite"
        )
    if 2 * int((expected != 0).sum()) < expected.numel():
        raise AssertionError(f"{int((expected == 0).sum())} of {expected.numel()} elements are zero")
