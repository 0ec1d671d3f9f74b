"""``di verify``: golden values, and equal bits whatever the schedule."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from di_engine.cli.common import (
    EXIT_FAILURE,
    EXIT_USAGE,
    CommandError,
    existing_model,
    note_of_threads,
    plain,
    print_json,
    user_errors,
)
from di_engine.cli.interruption import raise_from_now_on

if TYPE_CHECKING:
    from di_model.packed import WeightLayout

    from di_engine.verify import EqualityReport, Finding, Verdict

app = typer.Typer(
    help="Check that this installation computes what it should.", no_args_is_help=True, rich_markup_mode=None
)

LAYOUT_HELP = "Of the weights of {}: stored, packed, or auto: packed if they are small."


@app.command("golden")
def golden(
    directory: Annotated[Path, typer.Argument(metavar="GOLDEN_DIR", help="Directory of golden files.")],
    checkpoints: Annotated[
        Path, typer.Option(help="Directory with one checkpoint folder a preset (micro, w128, ...).")
    ],
    tokenizer: Annotated[
        Path | None, typer.Option(exists=True, help="The released tokenizer.json, for the files about it.")
    ] = None,
    num_threads: Annotated[int, typer.Option("--threads", min=1, max=4096, help="Of the kernels.")] = 1,
    instruction_set: Annotated[
        str | None, typer.Option(help="Of the kernels.", show_default="the best here")
    ] = None,
    weight_layout: Annotated[str, typer.Option(help=LAYOUT_HELP.format("the cached path"))] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> int:
    """Check the reference model and the engine's cached path against golden values.

    Prints one line a case with its figure. Exits with 1 when a case misses its criterion, or when a file that is
    understood could not be checked.
    """
    from di_engine.verify import FindingKind, GoldenVerification, Verdict

    raise_from_now_on()
    layout = _layout(weight_layout)
    with user_errors(EXIT_USAGE):
        verification = GoldenVerification(
            directory,
            checkpoints,
            tokenizer,
            num_threads=num_threads,
            instruction_set=instruction_set,
            weight_layout=layout,
        )
    note_of_threads(num_threads)
    start = time.monotonic()
    cases = misses = unknown = 0
    for item in verification.run():
        if isinstance(item, Verdict):
            cases += 1
            misses += not item.result.passed
        else:
            misses += item.kind is FindingKind.MISSED
            unknown += item.kind is FindingKind.NOT_UNDERSTOOD
        _show(item, as_json)
    seconds = time.monotonic() - start
    if as_json:
        print_json(
            {"cases": cases, "misses": misses, "not_understood": unknown, "seconds": round(seconds, 1)}
        )
    else:
        typer.echo(f"{cases} cases, {misses} misses, {unknown} files not understood, {seconds:.1f} s")
    return EXIT_FAILURE if misses else 0


def _show(item: Verdict | Finding, as_json: bool) -> None:
    from di_engine.verify import Verdict

    if isinstance(item, Verdict):
        result = item.result
        if as_json:
            print_json({"subject": item.subject, **plain(result)})
        else:
            mark = "ok  " if result.passed else "MISS"
            typer.echo(f"{mark} {result.file}: {result.case} ({item.subject}): {result.figure}")
    elif as_json:
        print_json({"finding": item.kind.value, "file": item.file, "reason": item.reason})
    else:
        typer.echo(f"{item.kind.value.upper()} {item.file}: {item.reason}")
    sys.stdout.flush()


@app.command("equality")
def equality(
    checkpoint: Annotated[str, typer.Option(help="Checkpoint directory, or the name of a shipped model.")],
    cases: Annotated[int, typer.Option(min=1, help="How many random schedules.")] = 300,
    seed: Annotated[int, typer.Option(help="Of requests and schedules.")] = 1,
    instruction_set: Annotated[
        str | None, typer.Option(help="Of all runs.", show_default="all vectorized ones in turn")
    ] = None,
    weight_layout: Annotated[str, typer.Option(help=LAYOUT_HELP.format("schedules"))] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> int:
    """Run random requests in random schedules and compare tokens and log-probability bits with each run alone.

    Schedules differ in arrivals, priorities, chunks, pools (preemption, also of what is being computed), threads,
    instruction sets, asynchronous scheduling, and drafts of every length, right and wrong; alone, a request reads
    weights as stored. Exits with 1 at the first difference, and when something of this never occurred.
    """
    from tqdm import tqdm  # type: ignore[import-untyped]

    from di_engine.verify import EqualityCheck

    raise_from_now_on()
    layout = _layout(weight_layout)
    with user_errors():
        check = EqualityCheck(
            existing_model(checkpoint), seed, instruction_set=instruction_set, weight_layout=layout
        )
    start = time.monotonic()
    with tqdm(total=cases, unit="case", disable=not sys.stderr.isatty()) as bar:
        report = check.run(cases, progress=lambda done: bar.update(done - bar.n))
    seconds = round(time.monotonic() - start, 1)
    if as_json:
        print_json({**_report(report), "seconds": seconds})
    else:
        _print_report(report, seconds)
    return 0 if report.passed else EXIT_FAILURE


def _layout(text: str) -> WeightLayout:
    from di_model.packed import WeightLayout

    try:
        return WeightLayout(text)
    except ValueError:
        allowed = ", ".join(each.value for each in WeightLayout)
        raise CommandError(f"--weight-layout: got {text!r}, allowed: {allowed}", EXIT_USAGE) from None


def _report(report: EqualityReport) -> dict[str, Any]:
    return {
        "passed": report.passed,
        "cases": report.cases,
        "distinct_requests": report.distinct_requests,
        **dataclasses.asdict(report.coverage),
        "absent": list(report.coverage.absent),
        "difference": plain(report.difference),
    }


def _print_report(report: EqualityReport, seconds: float) -> None:
    coverage = report.coverage
    typer.echo(
        f"{report.cases} cases, {coverage.requests} requests ({report.distinct_requests} distinct), "
        f"{coverage.steps} steps, {seconds} s"
    )
    typer.echo(
        f"preemptions {coverage.preemptions}, chunks {coverage.chunks}, mixed steps {coverage.mixed_steps}, "
        f"aborts {coverage.aborts}, cases with two threads {coverage.threaded_cases}, with priorities "
        f"{coverage.priority_cases}"
    )
    typer.echo(
        f"steps planned while another was computed {coverage.overlapped_steps}, preemptions of what was being "
        f"computed {coverage.preemptions_in_flight}"
    )
    typer.echo(
        f"drafts planned {coverage.drafts_planned}, accepted {coverage.drafts_accepted}; cases that chose how many by "
        f"a cost curve {coverage.priced_cases}"
    )
    if report.difference is not None:
        difference = report.difference
        request = "" if difference.request is None else f", request {difference.request}"
        typer.echo(f"DIFFERENCE in case {difference.case.index}{request}: {difference.what}")
        typer.echo(f"the case: {difference.case}")
    elif coverage.absent:
        typer.echo(f"NOT SHOWN: no {', no '.join(coverage.absent)} occurred; run more cases")
    else:
        typer.echo("all equal, bit for bit")
