"""From the committed tokens of a step to what the caller sees: the only place where that is decided.

Text, log-probabilities, the finish reason, usage and the sampler's counts are all taken from one list of kept
tokens.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from di_spec.detokenizer import IncrementalDetokenizer, TokenBytes
from di_spec.logprobs import TokenLogprobs
from di_spec.state import SamplingState
from di_spec.stops import StopMatcher


class FinishReason(enum.IntEnum):
    """Why a request ended. The numbers are the scheduler's (docs/interfaces.md)."""

    NONE = 0
    STOP = 1
    """A token of the model's end tokens."""
    STOP_TOKEN = 2
    STOP_STRING = 3
    LENGTH = 4
    ABORT = 5
    ERROR = 6
    DEADLINE = 7
    """Its time was over."""
    PREEMPTED = 8
    """An engine that only decodes had no room for it."""
    HANDED_OVER = 9
    """Another engine goes on with it."""

    @property
    def label(self) -> str | None:
        """The word for callers: stop, length, abort, error, deadline or handed_over; None while running."""
        return _LABELS[self]


_RUNS = FinishReason.NONE
"""At hand: looking up a member of an enumeration takes longer than most of what is done here."""

_LABELS = {
    FinishReason.NONE: None,
    FinishReason.STOP: "stop",
    FinishReason.STOP_TOKEN: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "abort",
    FinishReason.ERROR: "error",
    FinishReason.DEADLINE: "deadline",
    FinishReason.PREEMPTED: "error",
    FinishReason.HANDED_OVER: "handed_over",
}


class RequestClosedError(RuntimeError):
    """Tokens or a second end arrived for a request that has ended."""


@dataclass(frozen=True)
class Alternative:
    """One of the most probable tokens at a position, with the bytes it stands for."""

    token_id: int
    logprob: float
    bytes: bytes


@dataclass(frozen=True)
class LogprobEntry:
    """Log-probability of one kept token.

    ``bytes`` is what the token adds to the text, so that joined entries are its UTF-8 form (with a stop string
    that is cut out of the text): empty for a special token that is left out, for the stop token that ended the
    text, and without detokenisation.
    """

    token_id: int
    logprob: float
    rank: int
    bytes: bytes
    top: tuple[Alternative, ...]


@dataclass(slots=True, unsafe_hash=True)  # as RequestDelta below
class Usage:
    """Tokens of the prompt and tokens kept in the output."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """Both together."""
        return self.prompt_tokens + self.completion_tokens


# Nothing changes one, so that it has a hash; frozen, it would take three times as long to make, for each token.
@dataclass(slots=True, unsafe_hash=True)
class RequestDelta:
    """What one step adds to a request's output.

    text: may lag behind the tokens while a character or a possible stop string is incomplete.
    token_ids, logprobs: the kept tokens; logprobs is None unless asked for.
    usage: counts of the whole request so far.
    finish_reason: NONE while the request runs.
    stop_reason: the stop string, or the id of the stop token, that ended it.
    error: what went wrong, as given to ``close``.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[LogprobEntry, ...] | None
    usage: Usage
    finish_reason: FinishReason = FinishReason.NONE
    stop_reason: str | int | None = None
    error: str | None = None


class RequestOutputState:
    """The output of one request as it grows. ``text``, ``token_ids`` and ``logprobs`` are the sum of its
    deltas."""

    def __init__(
        self, sampling: SamplingState, prompt_ids: Sequence[int], token_bytes: TokenBytes | None = None
    ) -> None:
        """Start a request.

        Args:
            sampling: its sampling state; ``commit`` keeps it up to date.
            prompt_ids: tokens of the prompt.
            token_bytes: the tokenizer's table; None produces no text (token ids in, token ids out).

        Raises:
            ValueError: stop strings without a tokenizer.
        """
        params = sampling.params
        if params.stop_strings and token_bytes is None:
            raise ValueError(f"stop: got {params.stop_strings!r}, allowed: none without a tokenizer")
        self.sampling = sampling
        self.finish_reason = FinishReason.NONE
        self.stop_reason: str | int | None = None
        self.token_ids: list[int] = []
        self.logprobs: list[LogprobEntry] | None = None if params.logprobs is None else []
        self._num_prompt_tokens = len(prompt_ids)
        self._pieces: list[str] = []
        self._stop: str | None = None  # the stop string, when it is complete
        stops = params.stop_strings
        self._matcher = StopMatcher(stops, params.include_stop_str_in_output) if stops else None
        self._table = token_bytes if params.detokenize else None
        self._detokenizer = (
            None
            if self._table is None
            else IncrementalDetokenizer(self._table, prompt_ids, params.skip_special_tokens)
        )

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._pieces)

    @property
    def finished(self) -> bool:
        """Whether the request has ended."""
        return self.finish_reason is not FinishReason.NONE

    @property
    def usage(self) -> Usage:
        """Token counts so far."""
        return Usage(self._num_prompt_tokens, len(self.token_ids))

    def commit(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs | None] = (),
        finish: FinishReason = FinishReason.NONE,
    ) -> RequestDelta:
        """Take the tokens that the scheduler kept in this step.

        A token that completes a stop string is the last one kept: later tokens of the step are dropped, and
        the request ends with STOP_STRING whatever ``finish`` says.

        Args:
            token_ids: in order; the last one is the end token when ``finish`` is STOP or STOP_TOKEN.
            logprobs: one per token when the request asks for them.
            finish: the scheduler's decision about the last of them.

        Raises:
            RequestClosedError: the request has ended.
            ValueError: the request asks for logprobs and they do not describe the tokens one by one.
        """
        self._check_open()
        described = None if self.logprobs is None else self._described(token_ids, logprobs)
        silent = len(token_ids) - (finish is not _RUNS and self._drops_last(finish))
        pieces: list[str] = []
        kept = 0
        while kept < len(token_ids) and self._stop is None:
            if kept < silent:
                pieces.append(self._text_of(token_ids[kept], len(self.token_ids) + kept))
            kept += 1
        kept_ids = tuple(map(int, token_ids[:kept]))
        entries = None if described is None else self._entries(described[:kept], silent)
        self.token_ids += kept_ids
        self.sampling.record(kept_ids)
        return self._close_step(pieces, kept_ids, entries, finish)

    def close(self, reason: FinishReason, error: str | None = None) -> RequestDelta:
        """End the request from outside (ABORT, ERROR, DEADLINE), without further tokens; text held back is let go.

        Raises RequestClosedError when it has ended already, and ValueError for NONE.
        """
        self._check_open()
        if reason is FinishReason.NONE:
            raise ValueError("reason: got NONE, allowed: a reason that ends the request")
        self.finish_reason = reason
        return self._delta([self._flush()], (), None if self.logprobs is None else [], error=error)

    def _close_step(
        self,
        pieces: list[str],
        kept_ids: tuple[int, ...],
        entries: list[LogprobEntry] | None,
        finish: FinishReason,
    ) -> RequestDelta:
        if self._stop is not None:
            self.finish_reason, self.stop_reason = FinishReason.STOP_STRING, self._stop
        elif finish is not _RUNS:
            self.finish_reason = finish
            if finish is FinishReason.STOP_TOKEN and kept_ids:
                self.stop_reason = kept_ids[-1]
            pieces.append(self._flush())
        return self._delta(pieces, kept_ids, entries)

    def _delta(
        self,
        pieces: list[str],
        kept_ids: tuple[int, ...],
        entries: list[LogprobEntry] | None,
        error: str | None = None,
    ) -> RequestDelta:
        text = "".join(pieces)
        if text:
            self._pieces.append(text)
        if self.logprobs is not None and entries is not None:
            self.logprobs += entries
        return RequestDelta(
            text,
            kept_ids,
            None if entries is None else tuple(entries),
            self.usage,
            self.finish_reason,
            self.stop_reason,
            error,
        )

    def _text_of(self, token_id: int, index: int) -> str:
        """The text that output token ``index`` makes certain. Stop strings count from ``min_tokens`` on."""
        if self._detokenizer is None:
            return ""
        text = self._detokenizer.push(token_id)
        if self._matcher is None or index < self.sampling.params.min_tokens:
            return text
        shown = self._matcher.push(text)
        self._stop = self._matcher.matched
        return shown

    def _flush(self) -> str:
        held = "" if self._matcher is None else self._matcher.flush()
        return held if self._detokenizer is None else held + self._detokenizer.flush()

    def _drops_last(self, finish: FinishReason) -> bool:
        """Whether the last token only ends the text and is no part of it."""
        ends = finish is FinishReason.STOP or finish is FinishReason.STOP_TOKEN
        return ends and not self.sampling.params.include_stop_str_in_output

    @staticmethod
    def _described(token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> list[TokenLogprobs]:
        """The log-probabilities of the step, one per token, of a request that asks for them."""
        present = [item for item in logprobs if item is not None]
        described = [item.token_id for item in present]
        if len(present) != len(logprobs) or described != list(token_ids):
            raise ValueError(
                f"logprobs: got entries of tokens {described}, allowed: one for each of {list(token_ids)}"
            )
        return present

    def _entries(self, logprobs: Sequence[TokenLogprobs], silent: int) -> list[LogprobEntry]:
        entries = []
        for index, item in enumerate(logprobs):
            contribution = b""
            if self._detokenizer is not None and index < silent:
                contribution = self._detokenizer.token_bytes(item.token_id)
            top = tuple(
                Alternative(token, value, b"" if self._table is None else self._table[token])
                for token, value in zip(item.top_ids, item.top_logprobs, strict=True)
            )
            entries.append(LogprobEntry(item.token_id, item.logprob, item.rank, contribution, top))
        return entries

    def _check_open(self) -> None:
        if self.finish_reason is not _RUNS:
            raise RequestClosedError(f"the request has ended already ({self.finish_reason.name})")
