"""``di bench predict``: what the released model should reach on a machine."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from di_engine.cli.bench_output import JsonOption
from di_engine.cli.common import EXIT_USAGE, CommandError, bytes_text, numbers, print_json, print_table


def command(
    read: Annotated[
        str, typer.Option(help="Read rates of memory in GB/s, all cores together, separated by commas.")
    ] = "100,250,500,1000",
    dot: Annotated[
        str,
        typer.Option(
            help="Peaks of the bfloat16 dot in TFLOP/s, one for each read rate, separated by commas, or one for all."
        ),
    ] = "8",
    context: Annotated[int, typer.Option(min=1, max=1 << 20, help="Tokens before a decode step.")] = 8192,
    decode_1: Annotated[float, typer.Option(min=0.01, max=1, help="Share of its floor, batch 1.")] = 0.8,
    decode_16: Annotated[float, typer.Option(min=0.01, max=1, help="Share of its floor, batch 16.")] = 0.65,
    prefill: Annotated[float, typer.Option(min=0.01, max=1, help="Share of its floor, prefill.")] = 0.6,
    as_json: JsonOption = False,
) -> None:
    """Compute tokens a second of the released model from what a machine can read and compute.

    The shares are what ``di bench layer`` reports as "reached" on that machine, or on one like it: give those. The
    defaults are no measurements, but what this project aims at.
    """
    from di_engine.benchmark.model_work import ModelWork
    from di_engine.benchmark.prediction import Shares, footprint, predict
    from di_engine.benchmark.release import released_config
    from di_engine.benchmark.work import Ceilings

    rates, peaks = _rates("--read", read), _rates("--dot", dot)
    peaks = peaks * len(rates) if len(peaks) == 1 else peaks
    if len(peaks) != len(rates):
        allowed = f"one number, or {len(rates)} as --read has"
        raise CommandError(f"--dot: got {dot!r}, allowed: {allowed}", EXIT_USAGE)
    config = released_config()
    work, needed = ModelWork(config), footprint(config)
    shares = Shares(decode_1, decode_16, prefill)
    found = [
        (rate, peak, predict(work, Ceilings(1e9 * rate, 1e12 * peak), shares, context))
        for rate, peak in zip(rates, peaks, strict=True)
    ]
    if as_json:
        rows = [{"read": rate, "dot": peak, "tokens_per_second": each} for rate, peak, each in found]
        print_json({"context": context, "shares": shares, "footprint": needed, "predictions": rows})
        return
    table = Table(box=None, pad_edge=False)
    for name in ("read, GB/s", "dot, TFLOP/s", "decode, batch 1", "decode, batch 16", "prefill"):
        table.add_column(name, justify="right")
    for rate, peak, each in found:
        cells = (rate, peak, each.decode_1, each.decode_16, each.prefill)
        table.add_row(*(f"{cell:,.1f}" for cell in cells))
    print_table(table)
    typer.echo("tokens a second")
    typer.echo(f"in memory: {bytes_text(needed.memory)}; on disk or in memory: {bytes_text(needed.tables)}")


def _rates(option: str, text: str) -> list[float]:
    allowed = "positive numbers, such as 100,250"
    return numbers(option, text, float, lambda rate: 0 < rate < float("inf"), allowed)
