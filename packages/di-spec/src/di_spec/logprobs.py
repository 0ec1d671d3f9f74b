"""Log-probabilities of given tokens, for the output and for the prompt alike.

They are the model's own: log-softmax of the raw logits, before bias, penalties, temperature and filters. So
they do not depend on how a token was chosen, and a prompt token gets the bits that the same token would get
when generated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from di_kernels.ops import sampling as ops
from torch import Tensor


class NonFiniteLogitsError(RuntimeError):
    """A row of logits holds NaN or an infinity: the model's output for this request cannot be used."""


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probability of one token and the most probable alternatives at its position.

    ``rank`` counts from 1 over descending logits, equals by lower id. ``top_ids`` and ``top_logprobs`` are
    best first and may contain the token itself.
    """

    token_id: int
    logprob: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


def token_logprobs(logits: Tensor, ids: Sequence[int], top: Sequence[int]) -> list[TokenLogprobs]:
    """Describe one token per row.

    Args:
        logits: float32 ``[rows, vocab]``, raw.
        ids: the token of each row, in ``[0, vocab)``.
        top: how many alternatives each row reports (at most the vocabulary).
    """
    chosen = torch.tensor(ids, dtype=torch.int64, device=logits.device)
    widest = min(max(top, default=0), logits.shape[1])
    described = ops.describe_tokens(logits, chosen, widest)
    rows = zip(ids, *(part.tolist() for part in described), top, strict=True)
    return [
        TokenLogprobs(token, logprob, rank, tuple(best[:k]), tuple(best_values[:k]))
        for token, logprob, rank, best, best_values, k in rows
    ]


def prompt_logprobs(logits: Tensor, labels: Sequence[int], k: int) -> list[TokenLogprobs]:
    """Log-probabilities of prompt tokens of one request (scheduler spec, 11.4).

    Args:
        logits: float32 ``[rows, vocab]``, raw; row ``j`` was computed from the tokens before ``labels[j]``.
        labels: the prompt token that follows each row; a prompt of ``m`` tokens has ``m - 1`` of them.
        k: alternatives per token.

    Raises:
        NonFiniteLogitsError: a row holds NaN or an infinity.
    """
    finite = ops.all_finite(logits)
    if not bool(finite.all()):
        raise NonFiniteLogitsError(f"logits of prompt row {finite.tolist().index(False)} are not finite")
    return token_logprobs(logits, labels, [k] * len(labels))
