"""``di bench roofline``: a picture of what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from di_engine.cli.common import EXIT_USAGE, CommandError, check_picture, user_errors


def command(
    records: Annotated[list[Path], typer.Argument(help="Files that --out of other benchmarks wrote.")],
    out: Annotated[Path, typer.Option(help="The picture; its ending chooses the format (svg, png, pdf).")],
) -> None:
    """Draw rates over arithmetic intensity, under what the machine reaches at most."""
    from di_engine.benchmark.record import read_record
    from di_engine.benchmark.roofline import left_out, plot_roofline
    from di_engine.simulator.errors import PlotUnavailableError

    check_picture("--out", out)
    with user_errors(EXIT_USAGE):
        results = [result for path in records for result in read_record(path)["results"]]
        try:
            plot_roofline(results, out)
        except PlotUnavailableError as error:
            raise CommandError(str(error)) from error
    typer.echo(f"wrote {out}")
    for line in left_out(results):
        typer.echo(f"left out: {line}")
