"""Verification of drafts, coupled mode: speculation that changes no bit of the output (ARCHITECTURE, 5.5).

A verify step has one row for the token that is certain and one for each draft behind it. The row of draft ``j`` was
computed from the drafts up to ``j``. So what is drawn from it, with the seed, the position and the sampling state that
a step without speculation would have there, is the next token if all of those drafts were right: if each equals the
token drawn from the row before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from di_spec.logprobs import TokenLogprobs
from di_spec.sampler import NOT_FINITE, Sampler
from di_spec.state import SamplingState


class SampledTokens(NamedTuple):
    """Tokens that a step offers one sequence, in order: accepted drafts, then the token that follows them.

    token_ids: empty when the sequence failed.
    logprobs: one entry a token, None where the request does not ask.
    error: why it failed.
    finite: whether the model's logits were finite.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...]
    error: str | None = None
    finite: bool = True


_FAILED = SampledTokens((), (), NOT_FINITE, finite=False)


def drawn_tokens(tokens: Sequence[int]) -> tuple[SampledTokens, ...]:
    """What ``sample_tokens`` returns of states that are all ``plain``, where their tokens have been drawn already.

    Args:
        tokens: one for each sequence; -1 where the model's logits were not finite.
    """
    return tuple([SampledTokens((token,), (None,)) if token >= 0 else _FAILED for token in tokens])


def sample_tokens(
    sampler: Sampler,
    logits: Tensor,
    states: Sequence[SamplingState],
    positions: NDArray[np.integer],
    rows: NDArray[np.integer] | None = None,
) -> tuple[SampledTokens, ...]:
    """Draw the next token of every sequence: a step without drafts. The arguments are those of ``Sampler.sample``."""
    output = sampler.sample(logits, states, positions, rows)
    tokens = [(token,) if token >= 0 else () for token in output.token_ids.tolist()]
    logprobs = [(entry,) if token else () for token, entry in zip(tokens, output.logprobs, strict=True)]
    columns = zip(tokens, logprobs, output.errors, output.finite.tolist(), strict=True)
    return tuple(map(SampledTokens._make, columns))


def verify_coupled(
    sampler: Sampler,
    logits: Tensor,
    states: Sequence[SamplingState],
    row_start: NDArray[np.integer],
    positions: NDArray[np.integer],
    drafts: NDArray[np.integer],
) -> tuple[SampledTokens, ...]:
    """Draw the next tokens of every sequence, as many as its drafts allow. A sequence without drafts gets one.

    A row whose logits are not usable ends its sequence's tokens before it; only where none precede it does the sequence
    fail. So the failure appears, as without speculation, in the step whose first row it is.

    Args:
        sampler: draws; row ``j`` of all sequences together.
        logits: float32 ``[rows, vocab]``, raw, sequence by sequence; not modified.
        states: of the ``n`` sequences, with what is committed; not modified.
        row_start: ``[n + 1]`` first row of each sequence, ascending from 0 to ``rows``; each has at least one.
        positions: ``[n]`` absolute index of the token that the first row of each sequence produces.
        drafts: ``[rows]`` the token that was proposed for what each row produces (and that the next row was computed
            from); -1 for the last row of each sequence, and where nothing was proposed.

    Returns:
        One entry for each sequence, with 1 to its number of rows tokens unless it failed.

    Raises:
        ValueError: the arguments do not agree in length.
    """
    _check(logits, states, row_start, positions, drafts)
    starts, expected = row_start.tolist(), drafts.tolist()
    if all(state.plain for state in states):
        return _verify_plain(sampler, logits, states, row_start, positions, expected)
    sampled = list(sample_tokens(sampler, logits, states, positions, row_start[:-1]))
    # What each sequence's latest token was drawn with, and from which row.
    ahead, at = list(states), starts[:-1]
    going = list(range(len(states)))
    while going := [i for i in going if sampled[i].token_ids[-1:] == (expected[at[i]],)]:
        for i in going:
            ahead[i] = ahead[i].ahead(sampled[i].token_ids[-1:])
            at[i] += 1
        following = sample_tokens(
            sampler,
            logits,
            [ahead[i] for i in going],
            np.array([positions[i] + at[i] - starts[i] for i in going]),
            np.array([at[i] for i in going]),
        )
        right = [(i, token) for i, token in zip(going, following, strict=True) if token.error is None]
        for i, token in right:
            earlier = sampled[i]
            sampled[i] = SampledTokens(earlier.token_ids + token.token_ids, earlier.logprobs + token.logprobs)
        going = [i for i, _ in right]
    return tuple(sampled)


def _verify_plain(
    sampler: Sampler,
    logits: Tensor,
    states: Sequence[SamplingState],
    row_start: NDArray[np.integer],
    positions: NDArray[np.integer],
    expected: Sequence[int],
) -> tuple[SampledTokens, ...]:
    """Of sequences that draw the same whatever drafts came before: all rows at once. A call costs more than a row."""
    sequence = np.repeat(np.arange(len(states)), np.diff(row_start))
    where = positions[sequence] + np.arange(len(sequence)) - row_start[sequence]
    drawn = sample_tokens(sampler, logits, [states[i] for i in sequence.tolist()], where)
    sampled = []
    for first in row_start[:-1].tolist():
        last = first
        while drawn[last].token_ids == (expected[last],) and drawn[last + 1].error is None:
            last += 1
        tokens = tuple([token for each in drawn[first : last + 1] for token in each.token_ids])
        sampled.append(SampledTokens(tokens, (None,) * len(tokens)) if last > first else drawn[first])
    return tuple(sampled)


def _check(
    logits: Tensor,
    states: Sequence[SamplingState],
    row_start: NDArray[np.integer],
    positions: NDArray[np.integer],
    drafts: NDArray[np.integer],
) -> None:
    rows, count = logits.shape[0], len(states)
    for name, value, length in (
        ("row_start", row_start, count + 1),
        ("positions", positions, count),
        ("drafts", drafts, rows),
    ):
        if value.shape != (length,):
            raise ValueError(
                f"{name} has shape {list(value.shape)}; allowed: [{length}], for {count} sequences and {rows} rows"
            )
    if row_start[0] != 0 or row_start[-1] != rows or bool((np.diff(row_start) < 1).any()):
        raise ValueError(
            f"row_start is {row_start.tolist()}; allowed: ascending from 0 to {rows}, a row or more each"
        )
    if bool((drafts[row_start[1:] - 1] != -1).any()):
        raise ValueError("drafts has a token at the last row of a sequence; allowed: -1")
