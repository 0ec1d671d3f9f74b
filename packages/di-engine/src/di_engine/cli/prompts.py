"""Where the prompts of ``di generate`` come from: options, a file of JSON lines, or standard input."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from di_spec import InvalidParameterError, SamplingParams

PROMPT_KEYS = ("prompt", "token_ids")


@dataclass(frozen=True)
class PromptLine:
    """One prompt with its parameters, or why it cannot be one; then prompt and params are None."""

    prompt: str | tuple[Any, ...] | None
    params: SamplingParams | None
    error: str | None = None


def from_texts(texts: list[str], sampling: Mapping[str, Any]) -> list[PromptLine]:
    """Prompts given as text, all with the same parameters.

    Raises:
        InvalidParameterError: a parameter is not allowed.
    """
    params = SamplingParams.from_dict(sampling)
    return [PromptLine(text, params) for text in texts]


def from_file(path: Path, sampling: Mapping[str, Any]) -> list[PromptLine]:
    """Prompts of a file with one JSON object a line; blank lines are skipped. A bad line fails alone.

    A line has ``prompt`` (text) or ``token_ids`` (list of integers), and any sampling parameters, which go before
    those in ``sampling``.

    Raises:
        OSError: the file cannot be read.
        InvalidParameterError: a parameter in ``sampling`` is not allowed.
        ValueError: the file is not UTF-8.
    """
    SamplingParams.from_dict(sampling)  # options that are wrong for every line are reported once
    return list(_lines(path.read_text(encoding="utf-8"), sampling))


def _lines(text: str, sampling: Mapping[str, Any]) -> Iterator[PromptLine]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield _parse(line, sampling)
            except (InvalidParameterError, _LineError) as error:
                yield PromptLine(None, None, f"line {number}: {error}")


class _LineError(ValueError):
    """A line that is no prompt."""


def _parse(line: str, sampling: Mapping[str, Any]) -> PromptLine:
    try:
        fields = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise _LineError(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise _LineError(
            f"got a JSON {type(fields).__name__}, allowed: an object with 'prompt' or 'token_ids'"
        )
    given = [key for key in PROMPT_KEYS if key in fields]
    if len(given) != 1:
        raise _LineError(f"got {' and '.join(given) or 'neither'}, allowed: one of 'prompt' and 'token_ids'")
    prompt = fields.pop(given[0])
    if not isinstance(prompt, str if given[0] == "prompt" else list):
        wanted = "text" if given[0] == "prompt" else "a list of integers"
        raise _LineError(f"{given[0]}: got {prompt!r}, allowed: {wanted}")
    params = SamplingParams.from_dict({**sampling, **_with_integer_keys(fields)})
    return PromptLine(prompt if isinstance(prompt, str) else tuple(prompt), params)


def _with_integer_keys(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON has text keys only; those of ``logit_bias`` are token ids."""
    bias = fields.get("logit_bias")
    if not isinstance(bias, dict):
        return fields
    return {
        **fields,
        "logit_bias": {int(key) if key.isdecimal() else key: value for key, value in bias.items()},
    }
