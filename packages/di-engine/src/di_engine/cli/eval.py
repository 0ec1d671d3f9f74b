"""``di eval``: how well a checkpoint speaks, and what each of its parts carries in it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from di_engine.cli.common import existing_model, note_of_threads, print_json, print_table
from di_engine.cli.interruption import raise_from_now_on
from di_engine.cli.usage import option_errors

if TYPE_CHECKING:
    from di_engine.evaluation import Evaluation, TaskScore


def command(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Checkpoint directory, or the name of a shipped model.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="A quarter of the tasks and the beginning of each text.")
    ] = False,
    num_threads: Annotated[
        int | None,
        typer.Option("--threads", help="Threads of the kernels.", show_default="one a usable core"),
    ] = None,
    instruction_set: Annotated[
        str | None,
        typer.Option(
            help="Instruction set of the kernels; results do not depend on it, but for amx, which has bits of its own.",
            show_default="the best here",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
) -> None:
    """Score held-out text, recall by distance and questions, all parts at work and with each switched off.

    Text is read in pieces of 4,094 tokens, each in a context of its own. Recall and questions count as right when every
    token is the one that greedy decoding takes. 2 to 4 minutes on two cores.
    """
    from tqdm import tqdm  # type: ignore[import-untyped]

    from di_engine.evaluation import EvaluationSet, evaluate

    raise_from_now_on()
    note_of_threads(num_threads)
    data = EvaluationSet.shipped()
    with option_errors(context), tqdm(unit="token", unit_scale=True, disable=not sys.stderr.isatty()) as bar:

        def report(what: str, tokens: int) -> None:
            bar.set_description(what, refresh=False)
            bar.update(tokens)

        found = evaluate(
            existing_model(model),
            data.quick() if quick else data,
            whole_texts=not quick,
            num_threads=num_threads,
            instruction_set=instruction_set,
            report=report,
        )
    if as_json:
        print_json(found)
        return
    for table in (_texts(found), _variants(found), _formats(found)):
        print_table(table)
        typer.echo()
    typer.echo(f"{found.seconds:.0f} s")


def _texts(found: Evaluation) -> Table:
    table = _table(
        f"Held-out text, bits per byte (contexts of {found.context:,} tokens)",
        "text",
        "bytes",
        "tokens",
        "model",
        "n-gram",
        "xz -9",
    )
    for text in found.texts:
        figures = (f"{value:.3f}" for value in (text.model, text.ngram, text.xz))
        table.add_row(text.name, f"{text.num_bytes:,}", f"{text.num_tokens:,}", *figures)
    return table


def _variants(found: Evaluation) -> Table:
    table = _table("Exact match", "task", "cases", *(variant.name for variant in found.variants))
    for scores in zip(*(variant.tasks for variant in found.variants), strict=True):
        table.add_row(_label(scores[0]), str(scores[0].cases), *(f"{score.share:.0%}" for score in scores))
    losses = (f"{variant.bits_per_byte:.3f}" for variant in found.variants)
    table.add_row("bits per byte, first pieces of all texts", "", *losses)
    return table


def _label(score: TaskScore) -> str:
    return score.task if score.distance is None else f"{score.task}, {score.distance:,} tokens back"


def _formats(found: Evaluation) -> Table:
    formats = found.formats
    table = _table("Number formats, bits per byte of the first pieces of all texts", "", "", "")
    table.show_header = False
    table.add_row("as served (release numerics)", f"{formats.release:.4f}", "")
    rows = [
        ("the same file in float32 numerics", formats.float32),
        ("before it was quantized", formats.trained),
    ]
    for label, value in rows:
        if value is not None:
            table.add_row(label, f"{value:.4f}", f"served is {formats.release / value - 1:+.2%} of it")
    return table


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table
