"""The n-gram model: its probabilities are those of a distribution, and follow from counts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from examples.nano.ngram import NgramModel

TEXTS = (b"the cat sat on the mat, and the cat ate the rat. " * 3, b"a dog and a cat ran to the door.\n" * 2)


@pytest.mark.parametrize("order", [0, 2, 5])
@pytest.mark.parametrize("context", [b"the c", b"zzzzz", b"t\xff\x00ae"])
def test_probabilities_of_the_next_byte_sum_to_one(order: int, context: bytes) -> None:
    model = NgramModel(TEXTS, order)
    before = len(context) * model.bits_per_byte(context)
    after = [(len(context) + 1) * model.bits_per_byte(context + bytes([byte])) for byte in range(256)]
    assert math.fsum(2 ** (before - bits) for bits in after) == pytest.approx(1, abs=1e-9)


def test_without_context_it_counts_bytes() -> None:
    model = NgramModel([b"aab"], order=0)
    assert model.bits_per_byte(b"a") < model.bits_per_byte(b"b") < model.bits_per_byte(b"c")


def test_more_context_predicts_repetition_better() -> None:
    text = b"and the cat sat"
    bits = [NgramModel(TEXTS, order).bits_per_byte(text) for order in (0, 1, 3)]
    assert bits == sorted(bits, reverse=True)


def test_unseen_bytes_cost_something_finite() -> None:
    assert np.isfinite(NgramModel(TEXTS, 3).bits_per_byte(bytes(range(256))))


@pytest.mark.parametrize("order", [-1, 8])
def test_an_order_that_does_not_fit_is_refused(order: int) -> None:
    with pytest.raises(ValueError, match=f"order is {order}"):
        NgramModel(TEXTS, order)
