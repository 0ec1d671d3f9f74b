"""Where the prompts of ``di generate`` come from: options, a file of JSON lines, or standard input."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from di_kernels.errors import shown
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
    those in ``sampling``. The file is UTF-8; a byte order mark at its start is not part of the first line.

    Raises:
        OSError: the file cannot be read.
        InvalidParameterError: a parameter in ``sampling`` is not allowed.
    """
    SamplingParams.from_dict(sampling)  # options that are wrong for every line are reported once
    return list(_lines(path.read_bytes(), sampling))


def _lines(data: bytes, sampling: Mapping[str, Any]) -> Iterator[PromptLine]:
    for number, line in enumerate(data.removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        if line.strip():
            try:
                yield _parse(line, sampling)
            except (InvalidParameterError, _LineError) as error:
                yield PromptLine(None, None, f"line {number}: {error}")


class _LineError(ValueError):
    """A line that is no prompt."""


def _parse(line: bytes, sampling: Mapping[str, Any]) -> PromptLine:
    fields = _json(line)
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
        raise _LineError(f"{given[0]}: got {shown(prompt)}, allowed: {wanted}")
    params = SamplingParams.from_dict({**sampling, **_with_integer_keys(fields)})
    return PromptLine(prompt if isinstance(prompt, str) else tuple(prompt), params)


def _json(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"), object_pairs_hook=_object)
    except _LineError:
        raise
    except UnicodeDecodeError as error:
        raise _LineError(f"not UTF-8: {error}") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise _LineError(f"not JSON: {error}") from error
    except ValueError as error:  # Python reads no longer integers
        raise _LineError(
            f"got an integer of too many digits, allowed: {sys.get_int_max_str_digits()} digits"
        ) from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Of two values for one key, either may be the one that was meant."""
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise _LineError(f"got key {shown(key)} twice, allowed: once")
        fields[key] = value
    return fields


def _with_integer_keys(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON has text keys only; those of ``logit_bias`` are token ids."""
    bias = fields.get("logit_bias")
    if not isinstance(bias, dict):
        return fields
    biases: dict[int | str, Any] = {}
    for key, value in bias.items():
        token = _token_id(key)
        if token in biases:
            raise _LineError(f"logit_bias: got token {token} twice, allowed: once")
        biases[token] = value
    return {**fields, "logit_bias": biases}


def _token_id(key: str) -> int | str:
    """The key as a number if it is one; what is none is refused with the other parameters."""
    try:
        return int(key) if key.isdecimal() else key
    except ValueError:  # Python reads no longer integers
        return key
