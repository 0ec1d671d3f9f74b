"""A request on its way through the engine, and the checks at its door."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np
from di_kernels.errors import shown
from di_model.config import ModelConfig
from di_model.tokenizer import Tokenizer
from di_scheduler import ConfigError, SequenceLimits, SequenceOptions
from di_spec import (
    InvalidParameterError,
    RequestOutputState,
    SamplingParams,
    SamplingState,
    TokenBytes,
    TokenLogprobs,
)
from numpy.typing import NDArray

from di_engine.errors import RequestError

Prompt = str | Sequence[int] | NDArray[np.integer]
"""Text, or token ids."""


@dataclass(frozen=True)
class RequestOptions:
    """When a request is served, not what comes of it.

    priority: classes of requests; those with a lower number go first, strictly.
    user: whose share of the class it takes, at least 0; users of a class take turns.
    weight: of that share, above 0.
    deadline: on the clock of ``time.monotonic()``; a request that is unfinished then ends with "deadline".

    Raises:
        RequestError: a field is out of range.
    """

    priority: int = 0
    user: int = 0
    weight: float = 1.0
    deadline: float | None = None

    def __post_init__(self) -> None:
        try:
            checked = self.for_scheduler
        except ConfigError as error:
            raise RequestError("options", str(error)) from error
        for name in ("priority", "user", "weight", "deadline"):
            object.__setattr__(self, name, getattr(checked, name))

    @property
    def for_scheduler(self) -> SequenceOptions:
        """The options of each of the request's sequences."""
        return SequenceOptions(
            priority=self.priority, user=self.user, weight=self.weight, deadline=self.deadline
        )


@dataclass(eq=False)
class Request:
    """One prompt with its sampling parameters. Its ``n`` choices are sequences of their own.

    prompt_ids: int32 ``[tokens]``.
    completion_tokens: output tokens of all choices so far.
    """

    request_id: str
    prompt_ids: NDArray[np.int32]
    params: SamplingParams
    completion_tokens: int = 0
    sequences: list[RequestSequence] = field(default_factory=list)


@dataclass(eq=False)
class RequestSequence:
    """One choice of a request. ``seq_id`` is never used again, so that a result for one that ended finds nothing.

    prompt_logprobs: entries of prompt tokens 1, 2, ... so far; None when nobody waits for them (not asked for,
        delivered, or another choice collects them: they are the same for all).
    """

    seq_id: int
    index: int
    request: Request
    sampling: SamplingState
    output: RequestOutputState
    prompt_logprobs: list[TokenLogprobs] | None

    @property
    def missing_prompt_logprobs(self) -> range:
        """Positions whose rows of logits the prompt's log-probabilities still need, in order."""
        # Read once: an abort may end the wait for them while a step is computed.
        collected = self.prompt_logprobs
        if collected is None:
            return range(0)
        return range(len(collected), len(self.request.prompt_ids) - 1)


def check_request_id(request_id: object) -> str:
    """The id itself. Raises RequestError for anything but a string that is not empty."""
    if not isinstance(request_id, str) or not request_id:
        raise RequestError("request_id", f"got {shown(request_id)}, allowed: a string that is not empty")
    return request_id


def request_ids_of(given: str | Iterable[str]) -> tuple[str, ...]:
    """One id or several, as a tuple. Raises TypeError for anything else."""
    if isinstance(given, str):
        return (given,)
    names = tuple(given) if isinstance(given, Iterable) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise TypeError(f"request_ids: got {shown(given)}, allowed: a request's id, or several ids")
    return names


def encode_prompt(prompt: Prompt, tokenizer: Tokenizer, *, add_bos: bool) -> NDArray[np.int32]:
    """Token ids of a prompt, int32 ``[tokens]``.

    Args:
        prompt: text, or token ids, which are taken as they are.
        tokenizer: encodes text, and bounds the ids.
        add_bos: put BOS before text that does not begin with it.

    Raises:
        RequestError: the prompt is empty, of another type, or holds something that is no token id or no character.
    """
    if isinstance(prompt, str):
        _check_text(prompt)
        ids = tokenizer.encode(prompt)
        if ids and add_bos and ids[0] != tokenizer.bos_token_id:
            ids.insert(0, tokenizer.bos_token_id)
    elif _holds_ids(prompt):
        ids = [_token_id(index, token, tokenizer.vocab_size) for index, token in enumerate(prompt)]
    else:
        raise RequestError(
            "prompt", f"got {type(prompt).__name__}, allowed: text, or a sequence of token ids"
        )
    if not ids:
        raise RequestError("prompt", "got an empty prompt, allowed: at least one token")
    return np.array(ids, dtype=np.int32)


def _check_text(text: str) -> None:
    """Half of a surrogate pair, as lenient decoders leave it, is no character: a tokenizer has no bytes for it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"{text[error.start]!r} at character {error.start}"
        raise RequestError("prompt", f"got {found}, allowed: text without lone surrogates") from error


def _holds_ids(prompt: object) -> TypeGuard[Sequence[int] | NDArray[np.integer]]:
    if isinstance(prompt, np.ndarray):
        return prompt.ndim > 0
    return isinstance(prompt, Sequence) and not isinstance(prompt, bytes | bytearray | memoryview)


def _token_id(index: int, token: object, vocab_size: int) -> int:
    try:
        value = -1 if isinstance(token, bool | np.bool_) else operator.index(token)  # type: ignore[arg-type]
    except TypeError:
        value = -1
    if not 0 <= value < vocab_size:
        raise RequestError(
            "prompt", f"token {index}: got {shown(token)}, allowed: token ids 0..{vocab_size - 1}"
        )
    return value


def check_params(params: object, vocab_size: int) -> SamplingParams:
    """The parameters themselves. Raises RequestError naming the field that the model's vocabulary does not allow."""
    if not isinstance(params, SamplingParams):
        raise RequestError("params", f"got {type(params).__name__}, allowed: SamplingParams")
    try:
        params.validate_for(vocab_size)
    except InvalidParameterError as error:
        raise RequestError(error.field, f"got {shown(error.value)}, allowed: {error.allowed}") from error
    return params


def check_options(options: object) -> SequenceOptions:
    """The options for the scheduler; None: the usual ones. Raises RequestError for anything else."""
    if options is None:
        options = RequestOptions()
    if not isinstance(options, RequestOptions):
        raise RequestError("options", f"got {type(options).__name__}, allowed: RequestOptions")
    return options.for_scheduler


def new_sequence(
    seq_id: int,
    index: int,
    request: Request,
    params: SamplingParams,
    prompt: list[int],
    model: ModelConfig,
    token_bytes: TokenBytes,
) -> RequestSequence:
    """Choice ``index`` of a request, whose checked ``prompt`` all of its choices share; ``params`` have its seed."""
    sampling = SamplingState(
        params,
        prompt if params.penalised else (),  # only penalties look at it
        (model.eos_token_id,),
        vocab_size=model.text.vocab_size,
    )
    output = RequestOutputState(sampling, prompt, token_bytes)
    collects = index == 0 and request.params.prompt_logprobs is not None
    return RequestSequence(seq_id, index, request, sampling, output, [] if collects else None)


def sequence_limits(
    params: SamplingParams, prompt_tokens: int, eos_token_id: int, max_model_len: int
) -> SequenceLimits:
    """When a sequence of a request ends by itself: after ``max_tokens``, or what the context leaves.

    Raises RequestError when the context leaves nothing, or less than ``min_tokens`` where ``max_tokens`` is None.
    """
    return SequenceLimits(
        max_tokens=_output_budget(params, prompt_tokens, max_model_len),
        min_tokens=params.min_tokens,
        eos_token_ids=(eos_token_id,),
        stop_token_ids=tuple(params.stop_token_ids or ()),
        ignore_eos=params.ignore_eos,
    )


def _output_budget(params: SamplingParams, prompt_tokens: int, max_model_len: int) -> int:
    room = max_model_len - prompt_tokens
    if room < 1:
        allowed = (
            f"at most {max_model_len - 1} (max_model_len {max_model_len}, one token is left to generate)"
        )
        raise RequestError("prompt", f"got {prompt_tokens} tokens, allowed: {allowed}")
    if params.max_tokens is not None:
        return params.max_tokens
    if params.min_tokens > room:
        allowed = f"at most {room}, which the context leaves after the prompt"
        raise RequestError("min_tokens", f"got {params.min_tokens}, allowed: {allowed}")
    return room
