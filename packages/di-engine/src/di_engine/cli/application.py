"""All commands of ``di`` together. Heavy modules are imported inside the commands that need them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from di_engine.cli import bench, demo, doctor, generate, inspect, packed, simulate, verify
from di_engine.cli import eval as evaluation
from di_engine.cli.common import EXIT_FAILURE, EXIT_USAGE, CommandError, os_error_text, printable
from di_engine.cli.interruption import EXIT_INTERRUPTED, EXIT_TERMINATED, Terminated
from di_engine.cli.streams import write_error
from di_engine.cli.usage import usage_text
from di_engine.versions import installed_versions

app = typer.Typer(
    name="di",
    help="DeepSeek-V4.1 on the hardware you have: generate text, inspect checkpoints, verify an installation.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut long option names short
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate", epilog=generate.EXAMPLE)(generate.command)
app.command("inspect", short_help="Show what a checkpoint amounts to.")(inspect.command)
app.command("eval", short_help="Score a checkpoint, and what each of its parts carries.")(evaluation.command)
app.command("doctor", short_help="Say what this machine can run.")(doctor.command)
app.command("demo-checkpoint", short_help="Write a small random checkpoint.")(demo.command)
app.command("packed", short_help="List or remove files of packed weights.")(packed.command)
app.command("simulate", short_help="Serve a trace in virtual time.", epilog=simulate.EXAMPLE)(
    simulate.command
)
app.add_typer(bench.app, name="bench")
app.add_typer(verify.app, name="verify")


def _show_versions(wanted: bool) -> None:
    if wanted:
        typer.echo("\n".join(map(str, installed_versions())))
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_versions,
            is_eager=True,
            help="Show the versions of our packages, torch and Python.",
        ),
    ] = False,
) -> None:
    """What ``di`` itself takes, before a command."""
    if context.invoked_subcommand != "bench":
        # Kernels' threads sleep while they wait, unless the caller says otherwise: on a machine that others use too,
        # threads that spin lose whole time slices to each other. The thread runtime reads this once, when a command
        # loads it. A benchmark measures a machine of its own.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")


_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""What the parser raises for every bad command line; typer exports one of its subclasses only."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: that of the process) and return its exit code; see ``di_engine.cli.run``."""
    try:
        result = app(None if arguments is None else list(arguments), prog_name="di", standalone_mode=False)
        sys.stdout.flush()
    except CommandError as error:
        return _report(error.message, error.exit_code)
    except _UsageError as error:
        return _report(usage_text(error), EXIT_USAGE)
    except Terminated:
        return EXIT_TERMINATED
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_FAILURE  # the reader has had enough, and said so
    except OSError as error:  # those of input are told where it is read
        return _report(os_error_text(error, "cannot write the output"), EXIT_FAILURE)
    return result if isinstance(result, int) else 0


def _report(message: str, exit_code: int) -> int:
    if message:  # empty when no command was given: then the help has been shown
        write_error(f"di: {printable(message) if sys.stderr.isatty() else message}\n")
    return exit_code
