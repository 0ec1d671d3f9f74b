"""Mistakes of a command line, told by the names that its options have there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, get_args

import typer
from di_kernels.errors import shown

from di_engine.cli.common import EXIT_FAILURE, CommandError, plain, user_errors


def usage_text(error: Any) -> str:
    """What the parser refuses, such as ``--steps: got '1', allowed: an integer of at least 3``.

    Args:
        error: what it raised. A number that is none, or out of range, has its value in the cause.
    """
    parameter = getattr(error, "param", None)
    if parameter is None or not isinstance(error, typer.BadParameter) or hasattr(error, "param_type"):
        return str(error.format_message())  # an unknown option or command, or one that is missing
    name = parameter.get_error_hint().replace("'", "")
    details: list[Any] = getattr(error.__cause__, "errors", list)()
    allowed = _allowed_numbers(parameter)
    if details and allowed is not None:
        return f"{name}: got {shown(details[0]['input'])}, allowed: {allowed}"
    return f"{name}: {error.message.removesuffix('.')}"


def _allowed_numbers(parameter: Any) -> str | None:
    """The kind and the range of an option's numbers; None for one that takes anything else."""
    annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    kinds = (annotation, *get_args(annotation))
    if int not in kinds and float not in kinds:
        return None
    noun = "an integer" if int in kinds else "a number"
    match parameter.min, parameter.max:
        case None, None:
            return noun
        case least, None:
            return f"{noun} of at least {least:.12g}"
        case None, most:
            return f"{noun} of at most {most:.12g}"
        case least, most:
            return f"{noun} from {least:.12g} to {most:.12g}"


@contextmanager
def option_errors(context: typer.Context, exit_code: int = EXIT_FAILURE) -> Iterator[None]:
    """:func:`~di_engine.cli.common.user_errors`, where the names of settings become those of the options."""
    try:
        with user_errors(exit_code):
            yield
    except CommandError as error:
        cause = error.__cause__
        text = _setting_text(cause, _option_names(context)) if error.message == str(cause) else None
        if text is None:  # about no setting, or in words of its own
            raise
        raise CommandError(text, error.exit_code) from cause


def _option_names(context: typer.Context) -> dict[str, str]:
    """The options of a command, by the names of its parameters, which are those of settings."""
    names = {}
    for parameter in context.command.params:
        option = next((name for name in parameter.opts if name.startswith("--")), None)
        if option is not None and parameter.name is not None:
            names[parameter.name] = option
    return names


def _setting_text(error: BaseException | None, options: Mapping[str, str]) -> str | None:
    """What an error says about a setting, by the options that settings come from; None if it is about something else,
    such as a file that has a field of that name."""
    from di_cache import CacheConfigError
    from di_scheduler import ConfigError
    from di_spec import InvalidParameterError

    from di_engine.errors import EngineConfigError
    from di_engine.simulator.errors import SimulationConfigError

    if isinstance(error, CacheConfigError | ConfigError):  # begins with the name
        return re.sub(r"^\w+", lambda name: options.get(name[0], name[0]), str(error))
    if not isinstance(error, EngineConfigError | InvalidParameterError | SimulationConfigError):
        return None
    name, _, index = error.field.partition("[")
    field = options.get(name, name) + (f"[{index}" if index else "")
    return f"{field}: got {shown(plain(error.value))}, allowed: {_in_options(error.allowed, options)}"


def _in_options(allowed: str, options: Mapping[str, str]) -> str:
    """``allowed`` for somebody who gives options: settings by their names there, and None as what it is, no value.

    Names of one word may be words: only those of several are replaced.
    """
    allowed = allowed.removesuffix(", or None")
    allowed = re.sub(r"^None\b", "no value", allowed)
    allowed = re.sub(r"\b(STORED|PACKED|AUTO)\b", lambda member: member[0].lower(), allowed)
    return re.sub(r"\b[a-z]+(_[a-z]+)+\b", lambda name: options.get(name[0], name[0]), allowed)
