"""What callers receive: deltas while a request runs, one result when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from di_spec import Alternative, LogprobEntry, RequestDelta, TokenBytes, TokenLogprobs, Usage

from di_engine.request import Prompt, RequestSequence


# Nothing changes one, so that it has a hash; frozen, it would take three times as long to make, for each token.
@dataclass(slots=True, unsafe_hash=True)
class RequestOutput:
    """What one step adds to one choice of a request. Joined deltas are the whole output.

    request_id, index: the request, and which of its ``n`` choices.
    text: new text; it may lag behind the tokens while a character or a possible stop string is incomplete.
    token_ids: new tokens.
    logprobs: one entry a new token; None unless asked for.
    prompt_logprobs: entries of prompt tokens 1 to the last, once, with the first output of choice 0; else None.
    usage: of the whole request so far: the prompt counted once, the output tokens of all choices.
    finish_reason: "stop", "length", "abort", "deadline" or "error" with the last output of a choice, else None.
    stop_reason: the stop string or stop token id behind "stop"; None for the model's own end token.
    error: what went wrong, with "error".
    finished: whether this is the last output of the whole request. Every request has exactly one.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[LogprobEntry, ...] | None
    prompt_logprobs: tuple[LogprobEntry, ...] | None
    usage: Usage
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    finished: bool = False


@dataclass(frozen=True)
class ChoiceResult:
    """One complete continuation of a prompt; the fields are those of :class:`RequestOutput`."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[LogprobEntry, ...] | None
    finish_reason: str
    stop_reason: str | int | None = None
    error: str | None = None


@dataclass(frozen=True, eq=False)
class RequestResult:
    """Everything that came of one prompt.

    ``prompt`` is the one given. ``choices`` are the ``n`` continuations in order. A prompt that was refused has them
    too, empty, with the reason in ``error``.
    """

    prompt: Prompt
    choices: tuple[ChoiceResult, ...]
    prompt_logprobs: tuple[LogprobEntry, ...] | None
    usage: Usage

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Tokens of the first choice."""
        return self.choices[0].token_ids

    @property
    def logprobs(self) -> tuple[LogprobEntry, ...] | None:
        """Log-probabilities of the first choice."""
        return self.choices[0].logprobs

    @property
    def finish_reason(self) -> str:
        """Why the first choice ended."""
        return self.choices[0].finish_reason

    @property
    def error(self) -> str | None:
        """The first error among the choices, if any."""
        return next((choice.error for choice in self.choices if choice.error is not None), None)


def request_output(
    sequence: RequestSequence,
    delta: RequestDelta,
    prompt_logprobs: tuple[LogprobEntry, ...] | None,
    *,
    finished: bool,
) -> RequestOutput:
    """What a caller gets of a delta whose tokens the request has counted."""
    request = sequence.request
    return RequestOutput(
        request.request_id,
        sequence.index,
        delta.text,
        delta.token_ids,
        delta.logprobs,
        prompt_logprobs,
        Usage(len(request.prompt_ids), request.completion_tokens),
        delta.finish_reason.label,
        delta.stop_reason,
        delta.error,
        finished,
    )


def prompt_entries(logprobs: Sequence[TokenLogprobs], table: TokenBytes) -> tuple[LogprobEntry, ...]:
    """Log-probabilities of prompt tokens, with the bytes of each token."""
    return tuple(
        LogprobEntry(
            item.token_id,
            item.logprob,
            item.rank,
            table[item.token_id],
            tuple(
                Alternative(token, value, table[token])
                for token, value in zip(item.top_ids, item.top_logprobs, strict=True)
            ),
        )
        for item in logprobs
    )
