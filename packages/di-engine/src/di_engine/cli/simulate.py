"""``di simulate``: how the scheduler serves a trace, in virtual time."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from di_kernels.errors import shown
from rich.table import Table

from di_engine.cli.common import (
    EXIT_USAGE,
    CommandError,
    check_picture,
    numbers,
    print_json,
    print_table,
    stdout_console,
    user_errors,
)
from di_engine.cli.interruption import raise_from_now_on
from di_engine.cli.usage import option_errors

if TYPE_CHECKING:
    from di_engine.simulator import SimulationConfig, Summary, Times, Trace
    from di_engine.simulator.study import StudyConfig, StudyPoint
    from di_engine.simulator.synthetic import Lengths

EXAMPLE = "Example: di simulate --requests 5000 --rate 40 --users 4 --plot times.svg"


def _option(help_text: str, *names: str, least: float | None = None, most: float | None = None) -> Any:
    return typer.Option(*names, help=help_text, min=least, max=most)


def command(
    context: typer.Context,
    trace: Annotated[
        Path | None,
        _option(
            'File of JSON lines, each {"arrival": SECONDS, "prompt": TOKENS, "output": TOKENS} and if wanted '
            '"priority" and "user"; instead of a synthetic trace.'
        ),
    ] = None,
    requests: Annotated[int, _option("Requests of the synthetic trace.", least=0)] = 2000,
    rate: Annotated[float, _option("Requests a second.")] = 10.0,
    burst: Annotated[float, _option("Requests that arrive at one instant, on average.")] = 1.0,
    prompt: Annotated[
        str, _option("Prompt lengths: N, zipf:EXPONENT:MOST or lognormal:MEDIAN:SIGMA:MOST.")
    ] = "lognormal:512:1.0:8192",
    output: Annotated[str, _option("Output lengths, likewise.")] = "lognormal:128:0.8:2048",
    users: Annotated[int, _option("Users who share the requests.", least=1)] = 1,
    classes: Annotated[
        str, _option("Shares of the requests with priority 0, 1, ..., such as 1,9.", "--classes")
    ] = "1",
    seed: Annotated[int, _option("Of trace and drafts.", least=0)] = 0,
    curve: Annotated[
        Path | None,
        _option(
            "JSON file with the cost of a step in seconds: constant, per_row, per_context_token, host "
            "(by default 0.015, 20e-6, 2e-9, 0: chosen, not measured)."
        ),
    ] = None,
    policy: Annotated[str, _option("What a step may hold: mixed or homogeneous.")] = "mixed",
    asynchronous: Annotated[bool, _option("Plan a step while the one before it is computed.")] = False,
    ranks: Annotated[int, _option("Data-parallel ranks.", least=1)] = 1,
    lockstep: Annotated[bool, _option("Ranks step together, as expert parallelism makes them.")] = True,
    rule: Annotated[str, _option("Who chooses the kind of a step: own, or the reference's votes.")] = "own",
    balance: Annotated[
        str, _option("How requests are spread over ranks: least-loaded or round-robin.")
    ] = "least-loaded",
    snapshot_delay: Annotated[float, _option("Age in seconds of the load reports the balancer sees.")] = 0.0,
    num_blocks: Annotated[int, _option("Blocks of a rank's cache pool.", least=2)] = 4096,
    block_size: Annotated[int, _option("Tokens of a block.", least=1)] = 128,
    max_num_seqs: Annotated[int, _option("Requests that run at once on a rank.", least=1)] = 256,
    max_num_batched_tokens: Annotated[int, _option("Rows of one step.", least=1)] = 2048,
    max_draft_tokens: Annotated[int, _option("Drafts verified in one step.", least=0)] = 0,
    acceptance: Annotated[
        float, _option("Chance that a draft is accepted if those before it are.", least=0, most=1)
    ] = 0.7,
    against_reference: Annotated[
        bool,
        _option(
            "Serve the same traces under the reference's 70/100-step rule and under ours, over --rates, with 1 and 4 "
            "ranks in lockstep."
        ),
    ] = False,
    rates: Annotated[str, _option("Requests a second and rank, for --against-reference.")] = "1,2,4,8,12,16",
    plot: Annotated[Path | None, _option("Draw the times into this file (svg, png, pdf).")] = None,
    as_json: Annotated[bool, _option("One JSON object instead of a table.", "--json")] = False,
) -> None:
    """Serve a trace with the real scheduler and a device that only costs time, and show what requests get."""
    from di_scheduler import SchedulerConfig, StepPolicy

    from di_engine.simulator import (
        BalanceMode,
        SimulationConfig,
        StepCurve,
        StepRule,
        SyntheticTrace,
        read_curve,
        read_trace,
    )
    from di_engine.simulator.study import StudyConfig

    raise_from_now_on()
    _check_together(context.params)
    with option_errors(context, EXIT_USAGE):
        synthetic = SyntheticTrace(
            requests=requests,
            rate=rate,
            burst=burst,
            prompt=_lengths("--prompt", prompt),
            output=_lengths("--output", output),
            users=users,
            classes=_numbers("--classes", classes),
            seed=seed,
        )
        served = read_trace(trace) if trace is not None else synthetic.generate()
        scheduler = SchedulerConfig(
            num_blocks=num_blocks,
            num_slots=max_num_seqs + 1,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max(2, served.longest),
            max_draft_tokens=max_draft_tokens,
            max_steps_in_flight=2 if asynchronous else 1,
            policy=_choice("--policy", StepPolicy, policy),
        )
        simulation = SimulationConfig(
            scheduler=scheduler,
            curve=StepCurve() if curve is None else read_curve(curve),
            ranks=ranks,
            lockstep=lockstep,
            rule=_choice("--rule", StepRule, rule),
            balance=_choice("--balance", BalanceMode, balance),
            snapshot_delay=snapshot_delay,
            acceptance=acceptance,
            seed=seed,
        )
        study = None
        if against_reference:
            study = StudyConfig(synthetic, scheduler, simulation.curve, _numbers("--rates", rates))
    if study is not None:
        _study(study, plot, as_json)
    else:
        _serve(served, simulation, plot, as_json)


def _check_together(options: dict[str, Any]) -> None:
    """What is told in the words of options, before anything is computed."""
    if options["plot"] is not None:
        check_picture("--plot", options["plot"])
    seqs, rows = options["max_num_seqs"], options["max_num_batched_tokens"]
    if rows < seqs:
        allowed = f"at least --max-num-seqs ({seqs}), a row for each request"
        raise CommandError(f"--max-num-batched-tokens: got {rows}, allowed: {allowed}", EXIT_USAGE)
    if options["asynchronous"] and options["rule"] == "reference":
        raise CommandError("--asynchronous: not allowed together with --rule reference", EXIT_USAGE)


def _serve(trace: Trace, config: SimulationConfig, plot: Path | None, as_json: bool) -> None:
    from di_engine.simulator import simulate, summarize

    run = simulate(trace, config)
    summary = summarize(run)
    if plot is not None:
        from di_engine.simulator.plot import plot_run

        with _plot_errors():
            plot_run(run, plot)
    if as_json:
        print_json(summary)
    else:
        stdout_console().print(_summary_table(summary))


def _study(config: StudyConfig, plot: Path | None, as_json: bool) -> None:
    from tqdm import tqdm  # type: ignore[import-untyped]

    from di_engine.simulator.study import Contender, compare_rules

    total = len(config.rates) * len(config.ranks) * len(Contender)
    with (
        user_errors(EXIT_USAGE),
        tqdm(total=total, unit="simulation", disable=not sys.stderr.isatty()) as bar,
    ):
        points = compare_rules(config, progress=lambda point: bar.update())
    if plot is not None:
        from di_engine.simulator.plot import plot_study

        with _plot_errors():
            plot_study(points, plot)
    if as_json:
        print_json({"points": points})
    else:
        print_table(_study_table(points))


@contextmanager
def _plot_errors() -> Iterator[None]:
    """What --plot may meet: no matplotlib, a file that cannot be written."""
    from di_engine.simulator import PlotUnavailableError

    try:
        with user_errors(EXIT_USAGE):
            yield
    except PlotUnavailableError as error:
        raise CommandError(f"--plot: {error}") from error


_Choice = TypeVar("_Choice", bound=enum.Enum)


def _choice(option: str, kind: type[_Choice], text: str) -> _Choice:
    for member in kind:
        if member.value == text:
            return member
    allowed = ", ".join(str(member.value) for member in kind)
    raise CommandError(f"{option}: got {text!r}, allowed: {allowed}", EXIT_USAGE)


def _lengths(option: str, text: str) -> Lengths:
    """Of prompts or of outputs; the error says which."""
    from di_engine.simulator import SimulationConfigError, parse_lengths

    try:
        return parse_lengths(text)
    except SimulationConfigError as error:
        what = "" if error.field == "lengths" else f"{error.field}: "
        text = f"{option}: {what}got {shown(error.value)}, allowed: {error.allowed}"
        raise CommandError(text, EXIT_USAGE) from error


def _numbers(option: str, text: str) -> tuple[float, ...]:
    """Any numbers: what takes them checks their bounds."""
    return tuple(numbers(option, text, float, lambda number: True, "numbers such as 1,2.5"))


def _summary_table(summary: Summary) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    refused = f", {summary.refused:,} refused" if summary.refused else ""
    rows = [
        ("requests", f"{summary.requests:,}, {summary.finished:,} finished{refused}"),
        ("virtual time", f"{summary.seconds:,.1f} s"),
        (
            "throughput",
            f"{summary.output_tokens_per_second:,.1f} output tokens/s, {summary.requests_per_second:,.2f} requests/s",
        ),
        ("time to first token", _times(summary.time_to_first_token)),
        ("time between tokens", _times(summary.time_between_tokens)),
        ("time to finish", _times(summary.time_to_finish)),
        ("wait for first rows", f"mean {_ms(summary.mean_wait)}, worst {_ms(summary.worst_wait)}"),
        ("fairness", _fairness(summary)),
        ("preemptions", f"{summary.preemptions:,}"),
        ("blocks in use", f"mean {summary.kv_use_mean:.1%}, peak {summary.kv_use_peak:.1%}"),
        ("steps", f"{summary.steps:,}, {summary.empty_steps:,} without rows; {summary.rows:,} rows"),
        ("device in use", f"{summary.device_use:.1%}"),
    ]
    if summary.drafts_planned:
        share = summary.drafts_accepted / summary.drafts_planned
        rows.append(("drafts", f"{summary.drafts_planned:,} verified, {share:.1%} accepted"))
    if summary.imbalance is not None:
        rows.append(("fullest rank", f"{summary.imbalance:.3f} times the mean"))
    for row in rows:
        table.add_row(*row)
    return table


def _fairness(summary: Summary) -> str:
    if summary.fairness is None:
        return "not measured: no two users competed"
    return f"Jain index {summary.fairness:.3f} over {summary.fairness_windows:,} windows with competition"


def _study_table(points: list[StudyPoint]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in (
        "ranks",
        "rate",
        "rule",
        "first token mean",
        "p99",
        "between tokens mean",
        "p99",
        "tokens/s",
    ):
        table.add_column(name, justify="left" if name == "rule" else "right")
    for point in points:
        first, between = point.summary.time_to_first_token, point.summary.time_between_tokens
        table.add_row(
            str(point.ranks),
            f"{point.rate:g}",
            point.contender.value,
            _ms(None if first is None else first.mean),
            _ms(None if first is None else first.p99),
            _ms(None if between is None else between.mean),
            _ms(None if between is None else between.p99),
            f"{point.summary.output_tokens_per_second:,.0f}",
        )
    return table


def _times(times: Times | None) -> str:
    if times is None:
        return "none"
    return (
        f"mean {_ms(times.mean)}, p50 {_ms(times.p50)}, p90 {_ms(times.p90)}, p99 {_ms(times.p99)}, "
        f"worst {_ms(times.worst)}"
    )


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:,.1f} ms"
