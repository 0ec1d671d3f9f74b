"""``di generate``: prompts in, text or JSON lines out."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from di_engine.cli.common import (
    EXIT_FAILURE,
    EXIT_USAGE,
    CommandError,
    existing_model,
    given_path,
    note_of_threads,
    user_errors,
)
from di_engine.cli.demo import note_of
from di_engine.cli.interruption import raise_from_now_on
from di_engine.cli.results import describe_end, write_piece, write_results, write_summary
from di_engine.cli.streams import write_error
from di_engine.cli.usage import option_errors

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from di_engine import LLM
    from di_engine.cli.prompts import PromptLine
    from di_engine.outputs import RequestResult

EXAMPLE = (
    'Example: di generate MODEL --prompt "The quick brown fox" --max-tokens 48 --temperature 0.7 --seed 7'
)


def _option(
    help_text: str,
    *names: str,
    default: str | None = None,
    metavar: str | None = None,
    exists: bool = False,
    parser: Callable[[str], Any] | None = None,
) -> Any:
    """An option; ``default`` says in words what happens without it, where its default value does not.

    ``exists``: the path must be there. ``parser``: makes the value of the text.
    """
    shown = True if default is None else default
    return typer.Option(
        *names, help=help_text, show_default=shown, metavar=metavar, exists=exists, parser=parser
    )


# Defaults are those of SamplingParams and EngineConfig; a test holds them to that. They are repeated because help must
# show them without waiting for torch.
def command(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(help="Checkpoint directory, or the name of a shipped model.", show_default=False),
    ] = None,
    model_option: Annotated[str | None, _option("The same as MODEL.", "--model")] = None,
    prompt: Annotated[list[str] | None, _option("A prompt; may be repeated.", metavar="TEXT")] = None,
    prompt_file: Annotated[
        Path | None,
        _option(
            'File of JSON lines, each {"prompt": TEXT} or {"token_ids": [...]}; sampling parameters in a line, such as '
            '"max_tokens": 5, go before options.'
        ),
    ] = None,
    as_json: Annotated[bool, _option("Write one JSON object a prompt, in input order.", "--json")] = False,
    quiet: Annotated[bool, _option("Write nothing but results and errors.", "--quiet", "-q")] = False,
    temperature: Annotated[
        float, _option("0 always takes the most probable token; higher is more random.")
    ] = 1.0,
    top_p: Annotated[
        float,
        _option("Draw from the most probable tokens that make up this share; 1 is off."),
    ] = 1.0,
    top_k: Annotated[int, _option("Draw from this many of the most probable tokens; -1 is off.")] = -1,
    min_p: Annotated[
        float,
        _option("Drop tokens below this share of the top token's probability; 0 is off."),
    ] = 0.0,
    repetition_penalty: Annotated[
        float,
        _option("Above 1 makes tokens of prompt and output less likely; 1 is off."),
    ] = 1.0,
    presence_penalty: Annotated[
        float,
        _option("Taken once from the logit of each token that was generated; 0 is off."),
    ] = 0.0,
    frequency_penalty: Annotated[
        float,
        _option("Taken from a token's logit each time it was generated; 0 is off."),
    ] = 0.0,
    logit_bias: Annotated[
        list[str] | None,
        _option("ID=VALUE adds VALUE to the logit of token ID; may be repeated.", metavar="ID=VALUE"),
    ] = None,
    max_tokens: Annotated[int, _option("Most tokens to generate.")] = 16,
    min_tokens: Annotated[int, _option("Do not end before this many tokens.")] = 0,
    stop: Annotated[
        list[str] | None, _option("End before this text; may be repeated.", metavar="TEXT")
    ] = None,
    stop_token_ids: Annotated[
        list[int] | None,
        _option("End at this token id; may be repeated.", "--stop-token-id", metavar="ID"),
    ] = None,
    ignore_eos: Annotated[
        bool,
        _option("Go on after the model's end-of-text token.", "--ignore-eos"),
    ] = False,
    include_stop_str_in_output: Annotated[
        bool,
        _option("Keep the stop text or token in the output.", "--include-stop-str-in-output"),
    ] = False,
    seed: Annotated[
        int | None,
        _option("Makes sampling repeatable.", default="none: every run draws anew"),
    ] = None,
    n: Annotated[int, _option("How many continuations of each prompt.", "--n")] = 1,
    logprobs: Annotated[
        int | None,
        _option(
            "Report log-probabilities, with this many alternatives a token. Needs --json.",
            default="off",
        ),
    ] = None,
    prompt_logprobs: Annotated[
        int | None,
        _option("The same for the tokens of the prompt. Needs --json.", default="off"),
    ] = None,
    golden_token_ids: Annotated[
        str | None,
        _option(
            "Output tokens to force, such as 5,-1,7; -1 leaves that one free.",
            metavar="IDS",
            default="none",
        ),
    ] = None,
    skip_special_tokens: Annotated[
        bool, _option("Leave special tokens, such as end of text, out of the text.")
    ] = True,
    detokenize: Annotated[bool, _option("Make text of the tokens; without, only token ids (--json).")] = True,
    tokenizer: Annotated[
        Path | None,
        _option("tokenizer.json, or its directory.", default="that of MODEL", exists=True),
    ] = None,
    numerics: Annotated[
        str,
        _option("release: as the released code computes; float32: for verification."),
    ] = "release",
    max_model_len: Annotated[
        int | None,
        _option(
            "Most tokens of a prompt and its output together.",
            default="4096, or less if model or caches hold less",
        ),
    ] = None,
    max_num_seqs: Annotated[int, _option("Most sequences that are generated at once; the rest wait.")] = 256,
    max_num_batched_tokens: Annotated[
        int,
        _option(
            "Most tokens that the model computes in one step, over all sequences: larger reads prompts faster and "
            "takes more memory. At least --max-num-seqs.",
        ),
    ] = 2048,
    max_chunk_tokens: Annotated[
        int | None,
        _option(
            "Most tokens of one prompt in one step; longer prompts take several.",
            "--chunk",
            default="a whole step",
        ),
    ] = None,
    block_size: Annotated[
        int, _option("Tokens of a cache block, the unit in which sequences get memory.")
    ] = 128,
    num_blocks: Annotated[
        int | None,
        _option(
            "Blocks of the cache, instead of --kv-cache-bytes.",
            default="what --kv-cache-bytes pays for",
        ),
    ] = None,
    kv_cache_bytes: Annotated[
        int | None,
        _option(
            "Memory for the caches.",
            default="what --max-num-seqs can use, at most half of what is free",
        ),
    ] = None,
    policy: Annotated[
        str,
        _option("mixed: prompts and outputs share steps; homogeneous: each has its own."),
    ] = "mixed",
    num_threads: Annotated[
        int | None,
        _option("Threads of the kernels.", "--threads", default="one a usable core"),
    ] = None,
    pin_threads: Annotated[
        bool, _option("Keep each thread of the kernels on a processor of its own.")
    ] = False,
    instruction_set: Annotated[
        str | None,
        _option(
            "Instruction set of the kernels; results do not depend on it, but for amx, which has bits of its own.",
            default="the best here",
        ),
    ] = None,
    weight_layout: Annotated[
        str,
        _option(
            "stored: weights are read where the checkpoint has them; packed: interleaved for the kernels; auto: packed "
            "if they are small. Results do not depend on it."
        ),
    ] = "auto",
    packed_directory: Annotated[
        Path | None,
        _option(
            "Directory that keeps packed weights from run to run.",
            default="none: packed in memory",
            parser=given_path,
            metavar="<path>",
        ),
    ] = None,
    load_draft: Annotated[bool, _option("Load the draft model.")] = True,
) -> int:
    """Generate text.

    Prompts come from --prompt, from --prompt-file, or else from standard input: all of it is one prompt, without the
    newline at its end. A single prompt is streamed to a terminal. A closing line on standard error says how many tokens
    came, why they ended and how fast they were.

    Exits with 0 when all went well, 1 when a prompt failed or the checkpoint is bad, 2 when the command line is wrong
    (also: a value that this model or this machine does not allow), and 130 when interrupted.
    """
    # All options are read through the context, so that each is named once: in the signature.
    from di_engine import EngineConfig

    directory = existing_model(_one_model(model, model_option))
    if not as_json:
        _check_text_shows(context.params)
    sampling = _sampling_options(context.params)
    # --seed is that of sampling: with it, or without it, the engine's own seed has no work left.
    engine_options = _given(context.params, EngineConfig, leave_out=("model", "seed"))
    with option_errors(context, EXIT_USAGE):
        EngineConfig.from_dict({"model": directory, **engine_options})
    lines = _read_prompts(context, prompt, prompt_file, sampling)
    note = note_of(directory)
    if note is not None and not quiet:
        write_error(f"note: {note}\n")
    if not quiet:
        note_of_threads(engine_options.get("num_threads"))
    if all(line.error is not None for line in lines):  # not worth a load
        return 0 if write_results(lines, {}, as_json) else EXIT_FAILURE
    summarize = not (as_json or quiet)
    with _open(context, directory, engine_options) as llm:
        _check_vocabulary(context, llm, sampling)
        if not as_json and sys.stdout.isatty() and _may_stream(lines):
            return _stream(llm, lines[0], summarize)
        start = time.monotonic()
        results = _generate(llm, lines, show_progress=sys.stderr.isatty() and not quiet)
        seconds = time.monotonic() - start
    succeeded = write_results(lines, results, as_json)
    if summarize:
        _summarize(len(lines), results, seconds)
    return 0 if succeeded else EXIT_FAILURE


def _one_model(argument: str | None, option: str | None) -> str:
    given = [value for value in (argument, option) if value is not None]
    if len(given) != 1:
        raise CommandError(
            f"MODEL: got {'two' if given else 'none'}, allowed: one, as argument or --model", EXIT_USAGE
        )
    return given[0]


def _check_text_shows(options: dict[str, Any]) -> None:
    """Refuse what only JSON shows: it would be computed and lost."""
    for name in ("logprobs", "prompt_logprobs"):
        if options[name] is not None:
            option = f"--{name.replace('_', '-')}"
            raise CommandError(f"{option}: text does not show it; add --json", EXIT_USAGE)
    if not options["detokenize"]:
        raise CommandError("--no-detokenize: leaves nothing to show but token ids; add --json", EXIT_USAGE)


def _given(
    options: dict[str, Any], settings: type[DataclassInstance], leave_out: tuple[str, ...]
) -> dict[str, Any]:
    """Options that have a value and are fields of ``settings``; they have the same names."""
    names = [field.name for field in dataclasses.fields(settings) if field.name not in leave_out]
    return {name: options[name] for name in names if options.get(name) not in (None, [], ())}


def _sampling_options(options: dict[str, Any]) -> dict[str, Any]:
    from di_spec import SamplingParams

    sampling = _given(options, SamplingParams, leave_out=("logit_bias", "golden_token_ids"))
    if options["logit_bias"]:
        sampling["logit_bias"] = _biases(options["logit_bias"])
    if options["golden_token_ids"] is not None:
        sampling["golden_token_ids"] = [
            _number("--golden-token-ids", item, int, options["golden_token_ids"], "token ids such as 5,-1,7")
            for item in options["golden_token_ids"].split(",")
        ]
    return sampling


def _biases(texts: list[str]) -> dict[int, float]:
    biases: dict[int, float] = {}
    for token, value in map(_bias, texts):
        if token in biases:
            raise CommandError(f"--logit-bias: got token {token} twice, allowed: once", EXIT_USAGE)
        biases[token] = value
    return biases


def _bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition("=")
    allowed = "ID=VALUE, such as 42=-1.5"
    return (
        _number("--logit-bias", token, int, text, allowed),
        _number("--logit-bias", value, float, text, allowed),
    )


_Number = TypeVar("_Number", int, float)


def _number(option: str, text: str, kind: Callable[[str], _Number], given: str, allowed: str) -> _Number:
    """``text``, a part of what was ``given`` for the option, as a number."""
    from di_kernels.errors import shown

    try:
        return kind(text)
    except ValueError:
        raise CommandError(f"{option}: got {shown(given)}, allowed: {allowed}", EXIT_USAGE) from None


def _read_prompts(
    context: typer.Context, texts: list[str] | None, file: Path | None, sampling: dict[str, Any]
) -> list[PromptLine]:
    from di_engine.cli.prompts import from_file, from_texts

    if texts and file is not None:
        raise CommandError("--prompt-file: not allowed together with --prompt", EXIT_USAGE)
    if not texts and file is None:
        if sys.stdin.isatty():
            raise CommandError(
                "no prompt: give --prompt, --prompt-file, or text on standard input", EXIT_USAGE
            )
        texts = [_read_stdin()]
    with option_errors(context, EXIT_USAGE):
        return from_texts(texts or [], sampling) if file is None else from_file(file, sampling)


def _read_stdin() -> str:
    """One prompt. A newline at its end is the shell's: tools such as echo add it to any text."""
    with user_errors(EXIT_USAGE):
        try:
            return sys.stdin.read().removesuffix("\n")
        except UnicodeDecodeError as error:
            raise CommandError(f"standard input: {error}", EXIT_USAGE) from error


def _open(context: typer.Context, directory: Path, options: dict[str, Any]) -> LLM:
    from di_engine import LLM

    raise_from_now_on()  # loading may write a file of packed weights
    with option_errors(context):
        return LLM(directory, **options)


def _check_vocabulary(context: typer.Context, llm: LLM, sampling: dict[str, Any]) -> None:
    """Token ids in options that the model does not have are the command line's fault, not that of each prompt."""
    from di_spec import SamplingParams

    with option_errors(context, EXIT_USAGE):
        SamplingParams.from_dict(sampling).validate_for(llm.engine.model_config.text.vocab_size)


def _generate(llm: LLM, lines: list[PromptLine], *, show_progress: bool) -> dict[int, RequestResult]:
    """Results by index of the line; lines with an error have none."""
    good = {index: line for index, line in enumerate(lines) if line.error is None}
    prompts = [line.prompt for line in good.values() if line.prompt is not None]
    params = [line.params for line in good.values() if line.params is not None]
    return dict(zip(good, llm.generate(prompts, params, use_tqdm=show_progress), strict=True))


def _summarize(num_prompts: int, results: dict[int, RequestResult], seconds: float) -> None:
    """The closing line, unless nothing was generated: then the errors have said all."""
    if any(result.usage.completion_tokens for result in results.values()):
        write_summary(
            num_prompts,
            sum(result.usage.completion_tokens for result in results.values()),
            [
                describe_end(choice.finish_reason, choice.stop_reason)
                for result in results.values()
                for choice in result.choices
            ],
            seconds,
        )


def _may_stream(lines: list[PromptLine]) -> bool:
    """Whether there is a single text to write as it comes."""
    return len(lines) == 1 and lines[0].params is not None and lines[0].params.n == 1


def _stream(llm: LLM, line: PromptLine, summarize: bool) -> int:
    """Write the text of a single prompt as it comes."""
    from di_engine import RequestError

    assert line.prompt is not None  # a line without an error has both
    assert line.params is not None
    start = time.monotonic()
    try:
        llm.engine.add_request("prompt", line.prompt, line.params)
    except RequestError as refused:
        raise CommandError(f"prompt 0: {refused}") from refused
    last = None
    try:
        while llm.engine.has_unfinished():
            for last in llm.engine.step():
                write_piece(last.text)
            sys.stdout.flush()
    finally:  # an interruption must not leave the shell's prompt behind the text
        sys.stdout.write("\n")
    if last is None or last.error is not None:
        raise CommandError(f"prompt 0: {'nothing came' if last is None else last.error}")
    if summarize:
        end = describe_end(last.finish_reason or "", last.stop_reason)
        write_summary(1, last.usage.completion_tokens, [end], time.monotonic() - start)
    return 0
