"""A drafter that knows how sequences go on, and lies now and then: every way in which drafts can be right or wrong."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from di_spec import DraftContext, Proposal

NO_CONFIDENCES = 0.2
"""Share of proposals that come without confidences."""


@dataclass(frozen=True)
class Continuation:
    """What a sequence is known to become: ``tokens`` behind a prompt of ``prompt_len``."""

    prompt_len: int
    tokens: tuple[int, ...]


class ScriptedDrafter:
    """Proposes what is known to follow, of random length, now and then with a wrong token in it.

    Args:
        continuations: by the seed of the sampling state.
        vocab_size: wrong tokens, and those behind the end of what is known, are below it.
        seed: of everything random.
        wrong: chance that a proposal has a wrong token.
    """

    def __init__(
        self, continuations: Mapping[int, Continuation], vocab_size: int, seed: int, *, wrong: float = 0.4
    ) -> None:
        self._continuations, self._vocab_size, self._wrong = continuations, vocab_size, wrong
        self._random = random.Random(seed)

    def propose(self, context: DraftContext, max_tokens: int) -> Proposal:
        """Drafts of every length up to ``max_tokens``; confidences that mean nothing, or none at all."""
        shape = (len(context.states), max_tokens)
        tokens = np.full(shape, -1, dtype=np.int32)
        for row, (state, position) in enumerate(zip(context.states, context.positions.tolist(), strict=True)):
            known = self._continuations.get(state.seed, Continuation(0, ()))
            at = position + 1 - known.prompt_len
            drafts = [
                known.tokens[at + j]
                if at + j < len(known.tokens)
                else self._random.randrange(self._vocab_size)
                for j in range(self._random.randint(0, max_tokens))
            ]
            if drafts and self._random.random() < self._wrong:
                drafts[self._random.randrange(len(drafts))] = self._random.randrange(self._vocab_size)
            tokens[row, : len(drafts)] = drafts
        if self._random.random() < NO_CONFIDENCES:
            return Proposal(tokens)
        values = [[self._random.random() for _ in range(max_tokens)] for _ in range(shape[0])]
        return Proposal(tokens, np.array(values, dtype=np.float32).reshape(shape))
