"""How ``di generate`` writes what it generated: text, JSON lines, and the closing line about a run."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from di_engine.cli.common import print_json, printable
from di_engine.cli.streams import write_error

if TYPE_CHECKING:
    from di_spec import LogprobEntry

    from di_engine.cli.prompts import PromptLine
    from di_engine.outputs import ChoiceResult, RequestResult


def write_results(lines: Sequence[PromptLine], results: Mapping[int, RequestResult], as_json: bool) -> bool:
    """Write what came of every line, in order; errors of text output go to stderr.

    Args:
        lines: the prompts.
        results: by index of the line; a line with an error has none.
        as_json: one JSON object a line instead of text.

    Returns:
        Whether all is well: no prompt was refused or failed.
    """
    failed = False
    for index, line in enumerate(lines):
        result = results.get(index)
        error = line.error if result is None else result.error
        failed |= error is not None
        if as_json:
            print_json(
                {"index": index, **({} if result is None else _as_dict(result)), **_maybe("error", error)}
            )
        elif error is not None:
            write_error(f"di: prompt {index}: {error}\n")
        elif result is not None:
            _write_text(index if len(lines) > 1 else None, result)
    return not failed


def write_piece(text: str) -> None:
    """Write generated text. A terminal shows control characters escaped; everything else gets them as they are."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)


def write_summary(num_prompts: int, num_tokens: int, ends: Iterable[str], seconds: float) -> None:
    """The closing line, on stderr: ``3 prompts: 96 tokens, stopped: 2 length, 1 end of text, 1.50 s, 64.0 tokens/s``.

    Args:
        num_prompts: how many were asked for.
        num_tokens: generated for all of them together.
        ends: finish reason of every choice.
        seconds: spent on generating, loading left out.
    """
    counts = Counter(ends)
    single = counts.total() == 1
    reasons = [f"{'' if single else f'{count} '}{reason}" for reason, count in counts.most_common()]
    heading = "" if num_prompts == 1 else f"{_counted(num_prompts, 'prompt')}: "
    rate = f", {num_tokens / seconds:.1f} tokens/s" if seconds > 0 else ""
    write_error(
        f"{heading}{_counted(num_tokens, 'token')}, stopped: {', '.join(reasons)}, {seconds:.2f} s{rate}\n"
    )


def describe_end(finish_reason: str, stop_reason: str | int | None) -> str:
    """A finish reason with what is behind it: ``stop '\\n'``, ``stop token 7``, ``end of text``, ``length``."""
    if finish_reason != "stop":
        return finish_reason
    if stop_reason is None:
        return "end of text"
    return f"stop token {stop_reason}" if isinstance(stop_reason, int) else f"stop string {stop_reason!r}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _write_text(index: int | None, result: RequestResult) -> None:
    """Texts of a result; a heading says which prompt and choice it is where there are several."""
    for choice in result.choices:
        numbers = [] if index is None else [str(index)]
        numbers += [str(choice.index)] if len(result.choices) > 1 else []
        heading = f"[{'.'.join(numbers)}] " if numbers else ""
        write_piece(f"{heading}{choice.text}\n")


def _as_dict(result: RequestResult) -> dict[str, Any]:
    """The first choice's fields, those of the prompt, and all choices when there are several."""
    return {
        **_choice(result.choices[0]),
        "usage": {
            "prompt_tokens": result.usage.prompt_tokens,
            "completion_tokens": result.usage.completion_tokens,
            "total_tokens": result.usage.total_tokens,
        },
        **_maybe("prompt_logprobs", _entries(result.prompt_logprobs)),
        **_maybe("choices", [_choice(c) for c in result.choices] if len(result.choices) > 1 else None),
    }


def _choice(choice: ChoiceResult) -> dict[str, Any]:
    return {
        "text": choice.text,
        "token_ids": list(choice.token_ids),
        "finish_reason": choice.finish_reason,
        **_maybe("stop_reason", choice.stop_reason),
        **_maybe("logprobs", _entries(choice.logprobs)),
        **_maybe("error", choice.error),
    }


def _entries(entries: tuple[LogprobEntry, ...] | None) -> list[dict[str, Any]] | None:
    """Log-probabilities with the bytes of each token as numbers, which no encoding can break."""
    if entries is None:
        return None
    return [
        {
            "token_id": entry.token_id,
            "logprob": entry.logprob,
            "rank": entry.rank,
            "bytes": list(entry.bytes),
            "top": [
                {"token_id": other.token_id, "logprob": other.logprob, "bytes": list(other.bytes)}
                for other in entry.top
            ],
        }
        for entry in entries
    ]


def _maybe(name: str, value: Any) -> dict[str, Any]:
    """A field that is left out where there is nothing to say."""
    return {} if value is None else {name: value}
