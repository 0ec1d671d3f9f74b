"""One step of sampling: a row of logits per request in, a token per request out.

The order (decoding spec, 3): finiteness of the raw logits, logit bias, ends forbidden before ``min_tokens``,
penalties, then temperature, filters and the draw; a golden token replaces the result. Each row is handled by
itself, and its random number is a function of (seed, absolute position, purpose), so its token does not
depend on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
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

_NO_IDS: NDArray[np.int64] = np.empty(0, dtype=np.int64)
_NO_COUNTS: NDArray[np.int32] = np.empty(0, dtype=np.int32)


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
        self,
        logits: Tensor,
        states: Sequence[SamplingState],
        positions: Sequence[int] | NDArray[np.integer],
        rows: NDArray[np.integer] | None = None,
    ) -> SamplerOutput:
        """Choose the next token of each of ``n`` requests.

        Args:
            logits: float32 ``[rows, vocab]``, raw; not modified.
            states: ``[n]``, as committed.
            positions: ``[n]`` absolute index, prompt included, of the token to be produced.
            rows: ``[n]`` where the logits of each are; None: row after row.

        Raises:
            ValueError: they do not agree in length.
        """
        count = logits.shape[0] if rows is None else len(rows)
        if not count == len(states) == len(positions):
            raise ValueError(
                f"logits has {count} rows for {len(states)} states and {len(positions)} positions; "
                "allowed: equal counts"
            )
        special = [i for i, state in enumerate(states) if not state.plain]
        tokens, finite = _draw(logits, states, positions, rows, special)
        for i in special:
            forced = states[i].forced_token
            if forced is not None:
                tokens[i] = forced
        tokens[~finite] = -1
        return SamplerOutput(
            tokens, finite, _errors(tokens, finite), _logprobs(logits, states, rows, special, tokens)
        )


def _draw(
    logits: Tensor,
    states: Sequence[SamplingState],
    positions: Sequence[int] | NDArray[np.integer],
    rows: NDArray[np.integer] | None,
    special: Sequence[int],
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """A token of each row, -1 for none, and whether its logits were finite before they were edited."""
    device = logits.device
    packed = bytearray().join([state.packed for state in states])
    parameters = torch.frombuffer(packed, dtype=torch.uint8) if packed else torch.empty(0, dtype=torch.uint8)
    parameters = parameters.view(len(states), ops.PARAMETERS.itemsize).to(device)
    where = _indices(positions, device)
    which = None if rows is None else _indices(rows, device)
    edited = [i for i in special if states[i].edits_logits]
    if not edited:
        tokens, finite = ops.choose(logits, parameters, where, which)
    else:
        tokens, finite = torch.empty_like(where), torch.empty_like(where, dtype=torch.bool)
        which = torch.arange(len(states), device=device) if which is None else which
        if others := sorted(set(range(len(states))).difference(edited)):
            these = _indices(others, device)
            given = parameters[these], where[these], which[these]
            tokens[these], finite[these] = ops.choose(logits, *given)
        these = _indices(edited, device)
        part = logits.index_select(0, which[these])
        finite[these] = ops.all_finite(part)
        _edit(part, [states[i] for i in edited])
        tokens[these], _ = ops.choose(part, parameters[these], where[these])
    return tokens.cpu().numpy().astype(np.int32), finite.cpu().numpy()


def _indices(values: Sequence[int] | NDArray[np.integer], device: torch.device) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.int64)).to(device)


def _errors(tokens: NDArray[np.int32], finite: NDArray[np.bool_]) -> tuple[str | None, ...]:
    found = tokens.tolist()
    if min(found, default=0) >= 0:
        return (None,) * len(found)
    return tuple(
        None if token >= 0 else (NOTHING_TO_DRAW if row_finite else NOT_FINITE)
        for token, row_finite in zip(found, finite, strict=True)
    )


def _edit(logits: Tensor, states: Sequence[SamplingState]) -> None:
    """Apply bias, minimum length and penalties to ``logits``, in place."""
    device = logits.device
    ids, values = zip(*(state.bias for state in states), strict=True)
    if any(len(row) for row in ids):
        ops.apply_bias(logits, _row_starts(ids, device), _flat(ids, device), _flat(values, device))
    penalised = [state.counts for state in states]
    if any(counts is not None for counts in penalised):
        seen = [_NO_IDS if counts is None else counts.ids for counts in penalised]
        times = [_NO_COUNTS if counts is None else counts.counts for counts in penalised]
        factors = _flat([state.penalties for state in states], device).view(len(states), 3)
        entries = (_row_starts(seen, device), _flat(seen, device), _flat(times, device))
        ops.apply_penalties(logits, *entries, *factors.t().contiguous())


def _row_starts(parts: Sequence[NDArray[Any]], device: torch.device) -> Tensor:
    return torch.from_numpy(np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)).to(device)


def _flat(parts: Sequence[NDArray[Any]], device: torch.device) -> Tensor:
    return torch.from_numpy(np.concatenate(parts)).to(device)


def _logprobs(
    logits: Tensor,
    states: Sequence[SamplingState],
    rows: NDArray[np.integer] | None,
    special: Sequence[int],
    tokens: NDArray[np.int32],
) -> tuple[TokenLogprobs | None, ...]:
    wanted = {i: top for i in special if (top := states[i].params.logprobs) is not None and tokens[i] >= 0}
    if not wanted:
        return (None,) * len(states)
    result: list[TokenLogprobs | None] = [None] * len(states)
    which = list(wanted) if rows is None else rows[list(wanted)]
    part = logits if len(wanted) == len(logits) and rows is None else logits[_indices(which, logits.device)]
    entries = token_logprobs(part, tokens[list(wanted)].tolist(), list(wanted.values()))
    for i, entry in zip(wanted, entries, strict=True):
        result[i] = entry
    return tuple(result)
