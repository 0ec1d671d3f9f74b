"""``di generate``: prompts in, text or JSON lines out."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from di_engine.cli.common import EXIT_FAILURE, EXIT_USAGE, CommandError, print_json, user_errors
from di_engine.cli.demo import note_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from di_spec import LogprobEntry

    from di_engine import LLM
    from di_engine.cli.prompts import PromptLine
    from di_engine.outputs import ChoiceResult, RequestResult

_SAMPLING = "Sampling"
_ENGINE = "Engine"


def _option(help_text: str, *names: str, panel: str | None = None) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel)


# Defaults are None: what is not given is left to SamplingParams and EngineConfig, which own the defaults.
def command(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(help="Checkpoint directory.", show_default=False)] = None,
    model_option: Annotated[str | None, _option("The same as MODEL.", "--model")] = None,
    prompt: Annotated[list[str] | None, _option("A prompt; may be repeated.")] = None,
    prompt_file: Annotated[
        Path | None,
        _option('JSON lines: {"prompt": text} or {"token_ids": [...]}, with sampling parameters.'),
    ] = None,
    as_json: Annotated[bool, _option("One JSON object a prompt, in input order.", "--json")] = False,
    temperature: Annotated[float | None, _option("0 is greedy.", panel=_SAMPLING)] = None,
    top_p: Annotated[
        float | None, _option("Mass of the most probable tokens to keep.", panel=_SAMPLING)
    ] = None,
    top_k: Annotated[
        int | None, _option("How many of the most probable tokens to keep.", panel=_SAMPLING)
    ] = None,
    min_p: Annotated[float | None, _option("Least share of the top probability.", panel=_SAMPLING)] = None,
    repetition_penalty: Annotated[float | None, _option("Divides repeated logits.", panel=_SAMPLING)] = None,
    presence_penalty: Annotated[float | None, _option("Subtracted once a token.", panel=_SAMPLING)] = None,
    frequency_penalty: Annotated[float | None, _option("Subtracted each time.", panel=_SAMPLING)] = None,
    logit_bias: Annotated[list[str] | None, _option("ID=VALUE; may be repeated.", panel=_SAMPLING)] = None,
    max_tokens: Annotated[int | None, _option("Most tokens to generate.", panel=_SAMPLING)] = None,
    min_tokens: Annotated[int | None, _option("No end before this many.", panel=_SAMPLING)] = None,
    stop: Annotated[list[str] | None, _option("A stop string; may be repeated.", panel=_SAMPLING)] = None,
    stop_token_ids: Annotated[
        list[int] | None, _option("A stop token; may be repeated.", "--stop-token-id", panel=_SAMPLING)
    ] = None,
    ignore_eos: Annotated[bool | None, _option("Go on after EOS.", "--ignore-eos", panel=_SAMPLING)] = None,
    include_stop_str_in_output: Annotated[
        bool | None, _option("Keep what ended the text.", "--include-stop-str-in-output", panel=_SAMPLING)
    ] = None,
    seed: Annotated[int | None, _option("Makes sampling repeatable.", panel=_SAMPLING)] = None,
    n: Annotated[int | None, _option("Continuations of each prompt.", "--n", panel=_SAMPLING)] = None,
    logprobs: Annotated[int | None, _option("Alternatives a token, with --json.", panel=_SAMPLING)] = None,
    prompt_logprobs: Annotated[int | None, _option("The same for the prompt.", panel=_SAMPLING)] = None,
    golden_token_ids: Annotated[
        str | None, _option("Forced output, such as 5,-1,7; -1 is free.", panel=_SAMPLING)
    ] = None,
    skip_special_tokens: Annotated[
        bool | None, _option("Leave special tokens out of the text.", panel=_SAMPLING)
    ] = None,
    detokenize: Annotated[bool | None, _option("Produce text at all.", panel=_SAMPLING)] = None,
    tokenizer: Annotated[str | None, _option("tokenizer.json, if not in MODEL.", panel=_ENGINE)] = None,
    numerics: Annotated[str | None, _option("release or float32.", panel=_ENGINE)] = None,
    max_model_len: Annotated[int | None, _option("Most tokens of a sequence.", panel=_ENGINE)] = None,
    max_num_seqs: Annotated[int | None, _option("Sequences that run at once.", panel=_ENGINE)] = None,
    max_num_batched_tokens: Annotated[int | None, _option("Most rows of a step.", panel=_ENGINE)] = None,
    max_chunk_tokens: Annotated[
        int | None, _option("Most prompt rows of a sequence in a step.", "--chunk", panel=_ENGINE)
    ] = None,
    block_size: Annotated[int | None, _option("Tokens of a cache block.", panel=_ENGINE)] = None,
    num_blocks: Annotated[int | None, _option("Blocks of the cache pool.", panel=_ENGINE)] = None,
    kv_cache_bytes: Annotated[int | None, _option("Bytes of the cache pools.", panel=_ENGINE)] = None,
    policy: Annotated[str | None, _option("mixed or homogeneous steps.", panel=_ENGINE)] = None,
    num_threads: Annotated[int | None, _option("Threads of the kernels.", "--threads", panel=_ENGINE)] = None,
    load_draft: Annotated[bool | None, _option("Load the draft model.", panel=_ENGINE)] = None,
) -> int:
    """Generate text.

    Prompts come from --prompt, --prompt-file or standard input. A single prompt is streamed to a terminal. Exits with 1
    when a prompt failed, and with 130 when interrupted.
    """
    # All options are read through the context, so that each is named once: in the signature.
    from di_engine import EngineConfig

    directory = _one_model(model, model_option)
    sampling = _sampling_options(context.params)
    # --seed is that of sampling: with it, or without it, the engine's own seed has no work left.
    engine_options = _given(context.params, EngineConfig, leave_out=("model", "seed"))
    with user_errors(EXIT_USAGE):
        EngineConfig.from_dict({"model": directory, **engine_options})
    lines = _read_prompts(prompt, prompt_file, sampling)
    note = note_of(Path(directory))
    if note is not None:
        sys.stderr.write(f"note: {note}\n")
    if (
        not as_json
        and sys.stdout.isatty()
        and len(lines) == 1
        and lines[0].params is not None
        and lines[0].params.n == 1
    ):
        return _stream(directory, engine_options, lines[0])
    results = _generate(directory, engine_options, lines)
    return _write(lines, results, as_json)


def _one_model(argument: str | None, option: str | None) -> str:
    given = [value for value in (argument, option) if value is not None]
    if len(given) != 1:
        raise CommandError(
            f"MODEL: got {'two' if given else 'none'}, allowed: one, as argument or --model", EXIT_USAGE
        )
    return given[0]


def _given(
    options: dict[str, Any], settings: type[DataclassInstance], leave_out: tuple[str, ...]
) -> dict[str, Any]:
    """Options that were given and are fields of ``settings``; they have the same names."""
    names = [field.name for field in dataclasses.fields(settings) if field.name not in leave_out]
    return {name: options[name] for name in names if options.get(name) not in (None, [], ())}


def _sampling_options(options: dict[str, Any]) -> dict[str, Any]:
    from di_spec import SamplingParams

    sampling = _given(options, SamplingParams, leave_out=("logit_bias", "golden_token_ids"))
    if options["logit_bias"]:
        sampling["logit_bias"] = dict(map(_bias, options["logit_bias"]))
    if options["golden_token_ids"] is not None:
        sampling["golden_token_ids"] = [
            _number("--golden-token-ids", item, int) for item in options["golden_token_ids"].split(",")
        ]
    return sampling


def _bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition("=")
    return _number("--logit-bias", token, int), _number("--logit-bias", value, float)


_Number = TypeVar("_Number", int, float)


def _number(option: str, text: str, kind: Callable[[str], _Number]) -> _Number:
    try:
        return kind(text)
    except ValueError:
        raise CommandError(f"{option}: got {text!r}, allowed: a number", EXIT_USAGE) from None


def _read_prompts(texts: list[str] | None, file: Path | None, sampling: dict[str, Any]) -> list[PromptLine]:
    from di_engine.cli.prompts import from_file, from_texts

    if texts and file is not None:
        raise CommandError("--prompt-file: not allowed together with --prompt", EXIT_USAGE)
    if not texts and file is None:
        if sys.stdin.isatty():
            raise CommandError(
                "no prompt: give --prompt, --prompt-file, or text on standard input", EXIT_USAGE
            )
        texts = [sys.stdin.read()]
    with user_errors(EXIT_USAGE):
        return from_texts(texts or [], sampling) if file is None else from_file(file, sampling)


def _generate(directory: str, options: dict[str, Any], lines: list[PromptLine]) -> dict[int, RequestResult]:
    """Results by index of the line; lines with an error have none."""
    good = {index: line for index, line in enumerate(lines) if line.error is None}
    if not good:
        return {}
    with _open(directory, options) as llm:
        prompts = [line.prompt for line in good.values() if line.prompt is not None]
        params = [line.params for line in good.values() if line.params is not None]
        results = llm.generate(prompts, params, use_tqdm=sys.stderr.isatty())
    return dict(zip(good, results, strict=True))


def _stream(directory: str, options: dict[str, Any], line: PromptLine) -> int:
    """Write the text of a single prompt as it comes."""
    from di_engine import RequestError

    assert line.prompt is not None  # a line without an error has both
    assert line.params is not None
    error = None
    with _open(directory, options) as llm:
        try:
            llm.engine.add_request("prompt", line.prompt, line.params)
        except RequestError as refused:
            raise CommandError(str(refused)) from refused
        while llm.engine.has_unfinished():
            for output in llm.engine.step():
                sys.stdout.write(output.text)
                error = output.error or error
            sys.stdout.flush()
    sys.stdout.write("\n")
    if error is not None:
        raise CommandError(error)
    return 0


def _open(directory: str, options: dict[str, Any]) -> LLM:
    from di_engine import LLM

    with user_errors():
        return LLM(directory, **options)


def _write(lines: list[PromptLine], results: dict[int, RequestResult], as_json: bool) -> int:
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
            sys.stderr.write(f"di: prompt {index}: {error}\n")
        elif result is not None:
            _write_text(index if len(lines) > 1 else None, result)
    return EXIT_FAILURE if failed else 0


def _write_text(index: int | None, result: RequestResult) -> None:
    """Texts of a result; a heading says which prompt and choice it is where there are several."""
    for choice in result.choices:
        numbers = [] if index is None else [str(index)]
        numbers += [str(choice.index)] if len(result.choices) > 1 else []
        heading = f"[{'.'.join(numbers)}] " if numbers else ""
        sys.stdout.write(f"{heading}{choice.text}\n")


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
