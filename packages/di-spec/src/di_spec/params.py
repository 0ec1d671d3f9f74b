"""What one request asks of the sampler, validated the moment it is built."""

from __future__ import annotations

import dataclasses
import math
import numbers
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from di_kernels.errors import shown

GREEDY_TEMPERATURE = 1e-5
"""Temperatures below this mean the arg-max (decoding spec, 1.1 and 4.5)."""

MAX_LOGPROBS = 1000
"""Most alternatives one token may carry (decoding spec, 1.1)."""

MAX_LOGIT_BIAS_ENTRIES = 256
MAX_LOGIT_BIAS = 100.0
MAX_CHILDREN = 128

_U64 = 1 << 64
_CHILD_INCREMENT = 0x9E3779B97F4A7C15


class InvalidParameterError(ValueError):
    """A sampling parameter is not allowed; ``field``, ``value`` and ``allowed`` say which and why."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(field, value, allowed)  # as they came, so that the error can be pickled
        self.field, self.value, self.allowed = field, value, allowed

    def __str__(self) -> str:
        return f"{self.field}: got {shown(self.value)}, allowed: {self.allowed}"


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one request, checked and brought to plain Python types on construction.

    temperature: >= 0; below 1e-5 the arg-max is taken and the filters are off.
    top_p: in (0, 1]; smallest set of most probable tokens whose mass reaches it. 1 is off.
    top_k: -1 or 0 is off, else the k most probable tokens.
    min_p: in [0, 1]; drops tokens less probable than min_p times the most probable one. 0 is off.
    repetition_penalty: > 0, and a normal number in float32; divides positive and multiplies negative logits of
        tokens in prompt or output. 1 is off.
    presence_penalty, frequency_penalty: in [-2, 2]; subtracted once, or once an occurrence, for tokens of the
        output.
    logit_bias: token id -> value in [-100, 100] added to the logit; at most 256 entries.
    max_tokens: most tokens to generate, >= 1; None means up to the model length.
    min_tokens: no end by EOS, stop token or stop string before this many tokens.
    stop: one string or several; the text ends before the first that completes. Needs ``detokenize``.
    stop_token_ids: tokens that end the text like EOS.
    ignore_eos: EOS is an ordinary token.
    include_stop_str_in_output: keep the stop string, or the token that ended the text, in the text.
    seed: in [-2^63, 2^64), used modulo 2^64; None draws one when the request starts.
    n: independent continuations of the prompt, 1..128 (``children``).
    logprobs: None is off; k reports each token's log-probability and the k most probable alternatives.
    prompt_logprobs: the same for the prompt's tokens.
    golden_token_ids: forces output token i to the i-th entry; -1, and everything past the end, is free.
    skip_special_tokens: leave special tokens out of the text.
    detokenize: produce text at all.

    Raises InvalidParameterError (a ValueError) naming the field, its value and what is allowed.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    golden_token_ids: Sequence[int] | None = None
    skip_special_tokens: bool = True
    detokenize: bool = True

    def __post_init__(self) -> None:
        for name, (low, high, open_low) in _FLOAT_RANGES.items():
            self._set(name, _real(name, getattr(self, name), low, high, open_low))
        for name, (least, most) in _INT_RANGES.items():
            self._set(name, _integer(name, getattr(self, name), least, most))
        for name, (least, most) in _OPTIONAL_INT_RANGES.items():
            if getattr(self, name) is not None:
                self._set(name, _integer(name, getattr(self, name), least, most))
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "detokenize"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidParameterError(name, getattr(self, name), "True or False")
        self._set("stop", _stop_strings(self.stop))
        self._set("stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids, least=0))
        if self.golden_token_ids is not None:
            self._set("golden_token_ids", _token_ids("golden_token_ids", self.golden_token_ids, least=-1))
        if self.logit_bias is not None:
            self._set("logit_bias", _logit_bias(self.logit_bias))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameterError(
                "min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})"
            )
        if self.stop_strings and not self.detokenize:
            raise InvalidParameterError(
                "stop", self.stop, "none when detokenize is False (stop strings need the text)"
            )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """Whether tokens are the arg-max instead of drawn."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` as a tuple."""
        return tuple(self.stop or ())

    @property
    def penalised(self) -> bool:
        """Whether any of the three penalties is on."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Build from plain data. Raises InvalidParameterError naming keys that are no parameter."""
        known = {entry.name for entry in dataclasses.fields(cls)}
        unknown = sorted(str(key) for key in values if key not in known)
        if unknown:
            raise InvalidParameterError(
                "sampling parameters", unknown, f"only the keys {', '.join(sorted(known))}"
            )
        return cls(**values)

    def validate_for(self, vocab_size: int) -> None:
        """Raise InvalidParameterError when a token id of the parameters is not in ``[0, vocab_size)``."""
        groups: tuple[tuple[str, Sequence[int]], ...] = (
            ("logit_bias", tuple(self.logit_bias or ())),
            ("stop_token_ids", self.stop_token_ids or ()),
            ("golden_token_ids", [token for token in self.golden_token_ids or () if token != -1]),
        )
        for name, ids in groups:
            for token in ids:
                if not 0 <= token < vocab_size:
                    raise InvalidParameterError(name, token, f"token ids 0..{vocab_size - 1}")

    def children(self) -> tuple[SamplingParams, ...]:
        """The ``n`` single requests this one stands for.

        Child 0 keeps the seed, so that it equals the request with ``n=1``; the others get distinct seeds that
        are a function of (seed, index) only. Without a seed each child draws its own.
        """
        if self.n == 1:
            return (self,)
        seeds = [None if self.seed is None else child_seed(self.seed, index) for index in range(self.n)]
        return tuple(dataclasses.replace(self, n=1, seed=seed) for seed in seeds)


def child_seed(seed: int, index: int) -> int:
    """Return the 64-bit seed of continuation ``index``: ``seed`` itself for 0, else a bijective mix of it.

    The mix is the finaliser of SplitMix64 over ``seed + index * 0x9E3779B97F4A7C15`` (mod 2^64): for one seed
    no two indices above 0 share a result, and neighbouring seeds have unrelated children.
    """
    if index == 0:
        return seed % _U64
    state = (seed + index * _CHILD_INCREMENT) % _U64
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % _U64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % _U64
    return state ^ (state >> 31)


# Penalties are applied in float32: one that rounds to 0 or infinity there would make NaN of a logit of 0.
_FLOAT32_TINY, _FLOAT32_MAX = 2.0**-126, (2 - 2.0**-23) * 2.0**127
_FLOAT_RANGES: dict[str, tuple[float, float, bool]] = {
    "temperature": (0.0, math.inf, False),
    "top_p": (0.0, 1.0, True),
    "min_p": (0.0, 1.0, False),
    "repetition_penalty": (_FLOAT32_TINY, _FLOAT32_MAX, False),
    "presence_penalty": (-2.0, 2.0, False),
    "frequency_penalty": (-2.0, 2.0, False),
}
_MAX_INT = 2**31 - 1
_INT_RANGES = {"top_k": (-1, _MAX_INT), "min_tokens": (0, _MAX_INT), "n": (1, MAX_CHILDREN)}
_OPTIONAL_INT_RANGES = {
    "max_tokens": (1, _MAX_INT),
    "seed": (-(2**63), _U64 - 1),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
}


def _real(name: str, value: object, low: float, high: float, open_low: bool) -> float:
    bound = "" if math.isinf(high) else f" and at most {high:g}"
    allowed = f"a finite number {'above' if open_low else 'at least'} {low:g}{bound}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidParameterError(name, value, allowed)
    try:
        number = float(value)
    except OverflowError:  # an integer beyond float64
        number = math.inf
    if not math.isfinite(number) or number < low or number > high or (open_low and number == low):
        raise InvalidParameterError(name, value, allowed)
    return number


def _integer(name: str, value: object, least: int, most: int) -> int:
    allowed = f"an integer in [{least}, {most}]"
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidParameterError(name, value, allowed) from None
    if isinstance(value, bool) or not least <= number <= most:
        raise InvalidParameterError(name, value, allowed)
    return number


def _stop_strings(value: object) -> tuple[str, ...]:
    allowed = "a non-empty string, a sequence of them, or None"
    if value is None:
        return ()
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, Sequence) or isinstance(strings, bytes | bytearray):
        raise InvalidParameterError("stop", value, allowed)
    for string in strings:
        if not isinstance(string, str) or not string:
            raise InvalidParameterError("stop", value, allowed)
    return tuple(strings)


def _token_ids(name: str, value: object, least: int) -> tuple[int, ...]:
    if value is None:
        return ()
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidParameterError(name, value, "a sequence of token ids, or None")
    return tuple(_integer(f"{name}[{index}]", token, least, _MAX_INT) for index, token in enumerate(value))


def _logit_bias(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise InvalidParameterError("logit_bias", value, "a mapping of token id to number, or None")
    if len(value) > MAX_LOGIT_BIAS_ENTRIES:
        raise InvalidParameterError(
            "logit_bias", f"{len(value)} entries", f"at most {MAX_LOGIT_BIAS_ENTRIES} entries"
        )
    return {
        _integer("logit_bias key", token, 0, _MAX_INT): _real(
            f"logit_bias[{token!r}]", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS, open_low=False
        )
        for token, bias in value.items()
    }
