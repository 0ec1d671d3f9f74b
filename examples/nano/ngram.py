"""A byte-level n-gram model with interpolated modified Kneser-Ney smoothing: what a language model has to beat.

Source: S. F. Chen, J. Goodman, "An empirical study of smoothing techniques for language modeling", 1998, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ORDER = 5
"""Bytes that a prediction sees. (Counted as n-grams, the model is one of 6 bytes, the stronger reading of order 5.)"""
BYTE = 8
Grams = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Level:
    """Discounted counts of one length of n-gram.

    Attributes:
        grams: n-grams, ascending, the first byte in the highest bits.
        discounted: count of each less its discount.
        contexts: their first ``n - 1`` bytes, ascending.
        totals: sum of counts behind each context.
        kept_back: sum of the discounts behind each context, which goes to the next shorter level.
    """

    grams: Grams
    discounted: Values
    contexts: Grams
    totals: Values
    kept_back: Values

    @classmethod
    def build(cls, grams: Grams, counts: Counts) -> Level:
        discounted = counts - _discounts(counts)
        contexts, first = np.unique(grams >> np.uint64(BYTE), return_index=True)
        totals = np.add.reduceat(counts, first).astype(np.float64)
        return cls(grams, discounted, contexts, totals, totals - np.add.reduceat(discounted, first))


class NgramModel:
    """Probabilities of bytes after up to ``order`` bytes.

    Args:
        texts: the training texts; no n-gram spans two of them.
        order: bytes of context, at most 7.
    """

    def __init__(self, texts: Iterable[bytes], order: int = ORDER) -> None:
        if not 0 <= order < 8:
            raise ValueError(f"order is {order}; an n-gram has at most 8 bytes, so allowed: 0 to 7")
        self.order = order
        grams, counts = _counted([_packed(text, order + 1) for text in texts])
        levels = [Level.build(grams, counts)]
        for length in range(order, 0, -1):
            # Below the top a count is the number of different bytes that stand before the n-gram.
            grams, counts = np.unique(grams & _mask(length), return_counts=True)
            levels.append(Level.build(grams, counts))
        self.levels = levels[::-1]

    def bits_per_byte(self, text: bytes) -> float:
        """Mean of -log2 of the probability of each byte of ``text``, before which line breaks are supposed."""
        packed = _packed(b"\n" * self.order + text, self.order + 1)
        probability = np.full(len(packed), 1 / 256)
        for length, level in enumerate(self.levels, start=1):
            grams = packed & _mask(length)
            context, seen = _find(level.contexts, grams >> np.uint64(BYTE))
            place, known = _find(level.grams, grams)
            own = np.where(known, level.discounted[place], 0.0)
            mixed = (own + level.kept_back[context] * probability) / level.totals[context]
            probability = np.where(seen, mixed, probability)
        return float(-np.log2(probability).mean())


def _packed(text: bytes, length: int) -> Grams:
    """Every run of ``length`` bytes of a text as one number."""
    values = np.frombuffer(text, dtype=np.uint8)
    count = max(0, len(values) - length + 1)
    packed = np.zeros(count, dtype=np.uint64)
    for place in range(length):
        packed = (packed << np.uint64(BYTE)) | values[place : place + count]
    return packed


def _counted(parts: list[Grams]) -> tuple[Grams, Counts]:
    return np.unique(np.concatenate(parts), return_counts=True)


def _discounts(counts: Counts) -> Values:
    """What is taken from a count of 1, of 2 and of more (the formulas of section 3.4)."""
    n1, n2, n3, n4 = (max(int((counts == times).sum()), 1) for times in (1, 2, 3, 4))
    y = n1 / (n1 + 2 * n2)
    by_count = np.array([1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3])
    taken: Values = by_count.clip(0, [1, 2, 3])[np.minimum(counts, 3) - 1]
    return taken


def _mask(length: int) -> np.uint64:
    return np.uint64((1 << BYTE * length) - 1)


def _find(ascending: Grams, wanted: Grams) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Where each of ``wanted`` is, and whether it is there."""
    place = np.searchsorted(ascending, wanted).clip(max=len(ascending) - 1)
    return place, ascending[place] == wanted
