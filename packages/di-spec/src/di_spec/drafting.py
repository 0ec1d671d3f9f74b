"""What proposes drafts, seen from the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from di_cache import CachePool
from numpy.typing import NDArray

from di_spec.state import SamplingState


@dataclass(frozen=True, eq=False)
class DraftContext:
    """The ``n`` sequences of a step that go on, after its tokens were drawn and before they are committed.

    states: as committed before the step.
    new_tokens: what the step drew for each, at least one token.
    positions: int32 ``[n]`` absolute index of the last of them; the caches hold every position before it.
    slots: int32 ``[n]`` state slots.
    cache: pools of the step.
    """

    states: Sequence[SamplingState]
    new_tokens: Sequence[tuple[int, ...]]
    positions: NDArray[np.int32]
    slots: NDArray[np.int32]
    cache: CachePool

    @property
    def last_tokens(self) -> NDArray[np.int32]:
        """The latest token of each, int32 ``[n]``."""
        return np.array([tokens[-1] for tokens in self.new_tokens], dtype=np.int32)


@dataclass(frozen=True, eq=False)
class Proposal:
    """Drafts of ``n`` sequences.

    tokens: int32 ``[n, k]`` that may follow the last token of each; -1 ends a row early.
    confidences: float32 ``[n, k]`` in 0..1, the chance that a draft is right given that those before it are; None: not
        known. NaN and what lies below 0 counts as 0, what lies above 1 as 1.

    Raises:
        TypeError: an array of another kind.
        ValueError: arrays of different shapes.
    """

    tokens: NDArray[np.int32]
    confidences: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        _check_rows("tokens", self.tokens, np.int32)
        if self.confidences is None:
            return
        _check_rows("confidences", self.confidences, np.float32)
        if self.confidences.shape != self.tokens.shape:
            raise ValueError(
                f"confidences: got shape {self.confidences.shape}, allowed: {self.tokens.shape}, that of tokens"
            )


def _check_rows(name: str, rows: object, dtype: type[np.generic]) -> None:
    if isinstance(rows, np.ndarray) and rows.ndim == 2 and rows.dtype == dtype:
        return
    found = f"{rows.dtype} {rows.shape}" if isinstance(rows, np.ndarray) else type(rows).__name__
    raise TypeError(f"{name}: got {found}, allowed: a numpy array of {dtype.__name__} with 2 dimensions")


class Drafter(Protocol):
    """Proposes what follows. A wrong draft costs time and changes no output."""

    def propose(self, context: DraftContext, max_tokens: int) -> Proposal:
        """At most ``max_tokens`` drafts for each sequence of the context (``k <= max_tokens``).

        A confidence must not depend on the draft it belongs to, nor on later ones (decoding specification, 10.6).
        """
