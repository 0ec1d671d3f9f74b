"""Verification of drafts, coupled mode: speculation that changes no bit of the output (ARCHITECTURE, 5.5).

A verify step has one row for the token that is certain and one for each draft behind it. The row of draft ``j`` was
computed from the drafts up to ``j``. So what is drawn from it, with the seed, the position and the sampling state that
a step without speculation would have there, is the next token if all of those drafts were right: if each equals the
token drawn from the row before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from di_spec.logprobs import TokenLogprobs
from di_spec.sampler import Sampler, select_rows
from di_spec.state import SamplingState


@dataclass(frozen=True, eq=False)
class SampledTokens:
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
    ahead = list(states)
    tokens = np.full(len(drafts), -1, dtype=np.int32)
    logprobs: list[TokenLogprobs | None] = [None] * len(drafts)
    failures: dict[int, SampledTokens] = {}
    counts = np.zeros(len(states), dtype=np.int64)
    going = np.arange(len(states))  # sequences whose drafts were right so far
    while len(going):
        rows = row_start[going] + counts[going]
        produced = positions[going] + counts[going]
        output = sampler.sample(
            select_rows(logits, rows.tolist()), [ahead[i] for i in going], produced.tolist()
        )
        tokens[rows] = output.token_ids
        for k in range(len(rows)):
            logprobs[rows[k]] = output.logprobs[k]
            error = output.errors[k]
            if error is not None and counts[going[k]] == 0:
                failures[int(going[k])] = SampledTokens((), (), error, bool(output.finite[k]))
        counts[going] += ~output.failed
        right = ~output.failed & (output.token_ids == drafts[rows])
        going = going[right]
        for i, token in zip(going.tolist(), output.token_ids[right].tolist(), strict=True):
            ahead[i] = ahead[i].ahead((token,))
    return tuple(
        failures[i] if i in failures else _sampled(tokens, logprobs, int(row_start[i]), int(counts[i]))
        for i in range(len(states))
    )


def _sampled(
    tokens: NDArray[np.int32], logprobs: Sequence[TokenLogprobs | None], start: int, count: int
) -> SampledTokens:
    return SampledTokens(
        tuple(tokens[start : start + count].tolist()), tuple(logprobs[start : start + count])
    )


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
