"""What the sampler knows about one request besides its logits."""

from __future__ import annotations

import copy
import secrets
from collections import ChainMap, Counter
from collections.abc import MutableMapping, Sequence
from typing import NamedTuple

import numpy as np
from di_kernels.ops.sampling import PARAMETERS
from numpy.typing import NDArray

from di_spec.params import InvalidParameterError, SamplingParams

_FIRST_GROWTH = 64


class TokenBias(NamedTuple):
    """What is added to the logits of single tokens.

    ids: int64 ``[entries]``; a token that is listed twice gets both values.
    values: float32 ``[entries]``; ``-inf`` forbids a token.
    """

    ids: NDArray[np.int64]
    values: NDArray[np.float32]

    def forbidding(self, ids: NDArray[np.int64]) -> TokenBias:
        """This, and no token of ``ids``."""
        never = np.full(len(ids), -np.inf, dtype=np.float32)
        return TokenBias(np.concatenate([self.ids, ids]), np.concatenate([self.values, never]))


class TokenCounts:
    """The distinct tokens of a request with their number of occurrences in the output, 0 for prompt-only
    ones.

    Kept as two parallel arrays that grow, so that a step hands them to the kernel as they are.
    """

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        distinct = list(dict.fromkeys(int(token) for token in prompt_ids))
        self._index: MutableMapping[int, int] = {token: index for index, token in enumerate(distinct)}
        self._size = len(distinct)
        self._ids = np.array(distinct, dtype=np.int64)
        self._counts = np.zeros(len(distinct), dtype=np.int32)

    @property
    def ids(self) -> NDArray[np.int64]:
        """Distinct token ids, int64 ``[entries]``, in order of first appearance."""
        return self._ids[: self._size]

    @property
    def counts(self) -> NDArray[np.int32]:
        """Occurrences in the output, int32 ``[entries]``."""
        return self._counts[: self._size]

    def ahead(self, token_ids: Sequence[int]) -> TokenCounts:
        """These counts with more output tokens, apart from them; good until tokens are added here."""
        other = TokenCounts(())
        other._index, other._size = ChainMap({}, self._index), self._size  # the prompt's index is not copied
        other._ids, other._counts = self.ids.copy(), self.counts.copy()
        other.add(token_ids)
        return other

    def add(self, token_ids: Sequence[int]) -> None:
        """Count more output tokens."""
        for token, count in Counter(token_ids).items():
            index = self._index.setdefault(token, self._size)
            if index == len(self._ids):
                growth = max(_FIRST_GROWTH, index)
                self._ids = np.concatenate([self._ids, np.zeros(growth, dtype=np.int64)])
                self._counts = np.concatenate([self._counts, np.zeros(growth, dtype=np.int32)])
            self._ids[index] = token
            self._counts[index] += count
            self._size = max(self._size, index + 1)


class SamplingState:
    """Sampling parameters of one running request and what they have to be applied to.

    penalties: float32 ``[3]``, repetition, presence and frequency.
    packed: its parameters as ``di_kernels.ops.sampling.choose`` takes them, one record of ``PARAMETERS``.
    plain: whether those, and the seed and position, are all that its tokens depend on besides the model's logits, at
        every step; and nobody asks for log-probabilities.

    It changes only by ``record``, which the commit of the request calls with the tokens that were kept, so a
    request that is preempted and recomputed goes on with the same state.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int] = (),
        eos_token_ids: Sequence[int] = (),
        *,
        vocab_size: int,
    ) -> None:
        """Start a request.

        Args:
            params: with ``n == 1``; a request for more is several states (``SamplingParams.children``).
            prompt_ids: tokens of the prompt, which the repetition penalty looks at.
            eos_token_ids: the model's end tokens.
            vocab_size: columns of the logits.

        Raises:
            InvalidParameterError: a token id is outside the vocabulary, or ``n`` is not 1.
        """
        if params.n != 1:
            raise InvalidParameterError("n", params.n, "1 for a single continuation")
        params.validate_for(vocab_size)
        for token in prompt_ids:
            if not 0 <= token < vocab_size:
                raise InvalidParameterError("prompt_ids", token, f"token ids 0..{vocab_size - 1}")
        self.params = params
        self.seed = secrets.randbits(64) if params.seed is None else params.seed % (1 << 64)
        self.num_output_tokens = 0
        self.counts = TokenCounts(prompt_ids) if params.penalised else None
        # An end token outside the vocabulary cannot be drawn and needs no mask.
        eos = () if params.ignore_eos else tuple(token for token in eos_token_ids if 0 <= token < vocab_size)
        end_ids = np.array(sorted({*eos, *(params.stop_token_ids or ())}), dtype=np.int64)
        bias = params.logit_bias or {}
        self._bias = TokenBias(
            np.array(list(bias), dtype=np.int64), np.array(list(bias.values()), dtype=np.float32)
        )
        self._early_bias = self._bias.forbidding(end_ids)
        self.penalties = np.array(
            [params.repetition_penalty, params.presence_penalty, params.frequency_penalty], dtype=np.float32
        )
        draw = (params.temperature, params.top_p, params.min_p, params.top_k, self.seed)
        self.packed = np.array([draw], dtype=PARAMETERS).tobytes()
        self.plain = (
            self.counts is None
            and not bias
            and not (params.min_tokens and len(end_ids))
            and not params.golden_token_ids
            and params.logprobs is None
        )

    def record(self, token_ids: Sequence[int]) -> None:
        """Take note of output tokens that were committed."""
        self.num_output_tokens += len(token_ids)
        if self.counts is not None:
            self.counts.add(token_ids)

    def ahead(self, token_ids: Sequence[int]) -> SamplingState:
        """This state as if ``token_ids`` were committed, apart from it; good until it records something itself."""
        other = copy.copy(self)
        other.num_output_tokens += len(token_ids)
        if self.counts is not None:
            other.counts = self.counts.ahead(token_ids)
        return other

    @property
    def forced_token(self) -> int | None:
        """The golden token of the next position, if it is forced (decoding spec, 7.2)."""
        golden = self.params.golden_token_ids or ()
        token = golden[self.num_output_tokens] if self.num_output_tokens < len(golden) else -1
        return None if token == -1 else token

    @property
    def bias(self) -> TokenBias:
        """What is added to the next row of logits: the request's bias, and what keeps it from ending before
        ``min_tokens``."""
        return self._early_bias if self.num_output_tokens < self.params.min_tokens else self._bias

    @property
    def edits_logits(self) -> bool:
        """Whether bias, minimum length or penalties change the next row of logits."""
        return self.counts is not None or len(self.bias.ids) > 0
