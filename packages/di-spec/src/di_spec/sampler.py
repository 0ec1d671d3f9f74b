"""One step of sampling: a row of logits per request in, a token per request out.

The order (decoding spec, 3): finiteness of the raw logits, logit bias, ends forbidden before ``min_tokens``,
penalties, then temperature, filters and the draw; a golden token replaces the result. Each row is handled by
itself, and its random number is a function of (seed, absolute position, purpose), so its token does not
depend on the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from di_kernels.ops import sampling as ops
from numpy.typing import NDArray
from torch import Tensor

from di_spec.logprobs import TokenLogprobs, token_logprobs
from di_spec.state import SamplingState

NOT_FINITE = "the model's logits are not finite (NaN or infinity)"
NOTHING_TO_DRAW = "logit_bias, min_tokens and penalties leave no token to draw"


@dataclass(frozen=True)
class SamplerOutput:
    """Result of one step, one entry per row.

    token_ids: int32 ``[rows]``, -1 where the row failed.
    finite: bool ``[rows]``, whether the raw logits were finite.
    errors: why a row failed, else None. A failed row ends its own request only.
    logprobs: for rows whose request asks for them and that did not fail.
    """

    token_ids: NDArray[np.int32]
    finite: NDArray[np.bool_]
    errors: tuple[str | None, ...]
    logprobs: tuple[TokenLogprobs | None, ...]

    @property
    def failed(self) -> NDArray[np.bool_]:
        """Rows without a token, bool ``[rows]``."""
        return self.token_ids < 0


class Sampler:
    """Samples for all requests of an engine. It keeps nothing between steps."""

    def sample(
        self, logits: Tensor, states: Sequence[SamplingState], positions: Sequence[int]
    ) -> SamplerOutput:
        """Choose the next token of each row.

        Args:
            logits: float32 ``[rows, vocab]``, raw; not modified.
            states: the request of each row.
            positions: absolute index, prompt included, of the token that each row produces.

        Raises:
            ValueError: the three do not agree in length.
        """
        if not logits.shape[0] == len(states) == len(positions):
            raise ValueError(
                f"logits has {logits.shape[0]} rows for {len(states)} states and {len(positions)} positions; "
                "allowed: equal counts"
            )
        finite = ops.all_finite(logits).cpu().numpy()
        tokens = self._choose(logits, states, positions)
        tokens[~finite] = -1
        errors = tuple(
            None if token >= 0 else (NOTHING_TO_DRAW if row_finite else NOT_FINITE)
            for token, row_finite in zip(tokens, finite, strict=True)
        )
        return SamplerOutput(tokens, finite, errors, _logprobs(logits, states, tokens))

    def _choose(
        self, logits: Tensor, states: Sequence[SamplingState], positions: Sequence[int]
    ) -> NDArray[np.int32]:
        tokens = np.full(len(states), -1, dtype=np.int32)
        edited = [row for row, state in enumerate(states) if state.edits_logits]
        plain = [row for row, state in enumerate(states) if not state.edits_logits]
        for rows, edit in ((plain, False), (edited, True)):
            if not rows:
                continue
            part = select_rows(logits, rows, copy=edit)
            members = [states[row] for row in rows]
            if edit:
                _edit(part, members)
            tokens[rows] = _draw(part, members, [positions[row] for row in rows])
        for row, state in enumerate(states):
            if state.forced_token is not None:
                tokens[row] = state.forced_token
        return tokens


def select_rows(logits: Tensor, rows: Sequence[int], *, copy: bool = False) -> Tensor:
    """Rows of logits, in ascending order; with all of them, the tensor itself unless ``copy``."""
    if len(rows) == logits.shape[0] and not copy:
        return logits
    return logits.index_select(0, torch.tensor(rows, dtype=torch.int64, device=logits.device))


def _draw(logits: Tensor, states: Sequence[SamplingState], positions: Sequence[int]) -> NDArray[np.int32]:
    def column(get: Callable[[SamplingState], float], dtype: torch.dtype) -> Tensor:
        return torch.tensor([get(state) for state in states], dtype=dtype, device=logits.device)

    tokens = ops.sample(
        logits,
        temperature=column(lambda state: state.params.temperature, torch.float64),
        top_k=column(lambda state: state.params.top_k, torch.int64),
        top_p=column(lambda state: state.params.top_p, torch.float64),
        min_p=column(lambda state: state.params.min_p, torch.float64),
        seeds=column(lambda state: _as_int64(state.seed), torch.int64),
        positions=torch.tensor(positions, dtype=torch.int64, device=logits.device),
    )
    return tokens.cpu().numpy().astype(np.int32)


def _as_int64(seed: int) -> int:
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def _edit(logits: Tensor, states: Sequence[SamplingState]) -> None:
    """Apply bias, minimum length and penalties to ``logits``, in place."""
    device = logits.device
    forbidden = [state.forbidden_ids for state in states]
    ids = [np.concatenate([state.bias_ids, ends]) for state, ends in zip(states, forbidden, strict=True)]
    values = [
        np.concatenate([state.bias_values, np.full(len(ends), -np.inf, dtype=np.float32)])
        for state, ends in zip(states, forbidden, strict=True)
    ]
    ops.apply_bias(logits, _row_starts(ids, device), _flat(ids, device), _flat(values, device))
    penalised = [state.counts for state in states]
    if any(counts is not None for counts in penalised):
        seen = [np.empty(0, np.int64) if counts is None else counts.ids for counts in penalised]
        times = [np.empty(0, np.int32) if counts is None else counts.counts for counts in penalised]
        factors = torch.tensor(
            [
                [state.params.repetition_penalty for state in states],
                [state.params.presence_penalty for state in states],
                [state.params.frequency_penalty for state in states],
            ],
            dtype=torch.float32,
            device=device,
        )
        entries = (_row_starts(seen, device), _flat(seen, device), _flat(times, device))
        ops.apply_penalties(logits, *entries, *factors)


def _row_starts(parts: Sequence[NDArray[Any]], device: torch.device) -> Tensor:
    return torch.from_numpy(np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)).to(device)


def _flat(parts: Sequence[NDArray[Any]], device: torch.device) -> Tensor:
    return torch.from_numpy(np.concatenate(parts)).to(device)


def _logprobs(
    logits: Tensor, states: Sequence[SamplingState], tokens: NDArray[np.int32]
) -> tuple[TokenLogprobs | None, ...]:
    result: list[TokenLogprobs | None] = [None] * len(states)
    wanted = {
        row: state.params.logprobs
        for row, state in enumerate(states)
        if state.params.logprobs is not None and tokens[row] >= 0
    }
    if wanted:
        rows = list(wanted)
        part = select_rows(logits, rows)
        entries = token_logprobs(part, [int(tokens[row]) for row in rows], list(wanted.values()))
        for row, entry in zip(rows, entries, strict=True):
            result[row] = entry
    return tuple(result)
