"""Typed reading of JSON objects into frozen dataclasses whose fields carry their own rules.

A configuration dataclass declares each key once: its type, what values are allowed and, if the key may be
absent, its default. :func:`read_section` turns a JSON object into such a dataclass, :func:`check_rules`
(called from ``__post_init__``) holds every instance to its rules however it was made.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from di_kernels.errors import shown

T = TypeVar("T")


class ConfigError(ValueError):
    """A configuration that is not a DeepSeek-V4.1 model this package can run.

    The message names the key, the value found and what is supported.
    """

    def __init__(self, key: str, value: object, supported: str) -> None:
        self.key = key
        self.value = value
        self.supported = supported
        super().__init__(key, value, supported)

    def __str__(self) -> str:
        return f"{self.key} = {shown(self.value)} is not supported; supported: {self.supported}"


class AnotherModelError(ConfigError):
    """The configuration says itself that it is of another model, or says nothing of a model at all."""

    def __str__(self) -> str:
        return f"not a DeepSeek-V4.1 model: {super().__str__()}"


class UnreadableConfigError(ConfigError):
    """A file that is not JSON; ``key`` is its path."""

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        self.key, self.value, self.supported = path, None, "a JSON object"
        ValueError.__init__(self, path, reason)

    def __str__(self) -> str:
        return f"{self.path} is not JSON: {self.reason}"


class MissingKeysError(ConfigError):
    """Required keys are absent; all of them are named at once."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self.keys = keys
        self.key = keys[0]
        self.value = None
        self.supported = "present"
        ValueError.__init__(self, keys)

    def __str__(self) -> str:
        return f"configuration lacks {len(self.keys)} required key(s): {', '.join(self.keys)}"


@dataclass(frozen=True)
class Rule:
    """What a value must satisfy, with the words an error uses for it."""

    supported: str
    holds: Callable[[Any], bool]

    def __and__(self, other: Rule) -> Rule:
        return Rule(f"{self.supported}, {other.supported}", lambda v: self.holds(v) and other.holds(v))


ANY = Rule("any value", lambda value: True)
MAX_INTEGER = 2**31 - 1
"""Sizes, ids and counts are indices of 32 bits in the kernels and in the released code."""
FLOAT32_RANGE = (2.0**-126, (2 - 2.0**-23) * 2.0**127)
"""Normal numbers of the type that kernels compute with: nothing rounds to 0 or infinity."""
POSITIVE = Rule(
    "a number above 0 in the range of float32 (1.2e-38 to 3.4e38)",
    lambda value: FLOAT32_RANGE[0] <= value <= FLOAT32_RANGE[1],
)
NON_NEGATIVE = Rule("a number of at least 0", lambda value: value >= 0)


def at_least(low: int) -> Rule:
    return Rule(f"at least {low}", lambda value: value >= low)


def between(low: int, high: int) -> Rule:
    return Rule(f"at least {low}, at most {high}", lambda value: low <= value <= high)


def multiple_of(unit: int) -> Rule:
    return Rule(f"a positive multiple of {unit}", lambda value: value > 0 and value % unit == 0)


def exactly(expected: object) -> Rule:
    return Rule(f"only {expected!r}", lambda value: bool(value == expected))


def one_of(*allowed: object) -> Rule:
    return Rule("one of " + ", ".join(map(repr, allowed)), lambda value: value in allowed)


def each(rule: Rule) -> Rule:
    return Rule(
        f"a list whose every element is {rule.supported}", lambda values: all(map(rule.holds, values))
    )


DISTINCT = Rule("without repeated elements", lambda values: len(set(values)) == len(values))
ASCENDING = Rule("in ascending order", lambda values: all(a < b for a, b in itertools.pairwise(values)))


def key(rule: Rule = ANY, **default: Any) -> Any:
    """Declares a dataclass field with its rule; ``default=...`` makes the key optional in the JSON object."""
    return dataclasses.field(metadata={"rule": rule}, **default)


def check_rules(instance: Any, section: str) -> None:
    """Raises ConfigError for the first field of a dataclass instance that breaks its type or rule."""
    hints = typing.get_type_hints(type(instance))
    for field in dataclasses.fields(instance):
        rule = field.metadata.get("rule")
        if rule is None:
            continue
        name, value = _joined(section, field.name), getattr(instance, field.name)
        _coerce(name, value, hints[field.name])
        if value is not None and not rule.holds(value):
            raise ConfigError(name, value, rule.supported)


def missing_keys(cls: type, raw: Mapping[str, Any], section: str) -> tuple[str, ...]:
    """Names of the required keys of ``cls`` that ``raw`` lacks."""
    absent = []
    for field in dataclasses.fields(cls):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and "rule" in field.metadata and field.name not in raw:
            absent.append(_joined(section, field.name))
    return tuple(absent)


def read_section(cls: type[T], raw: Mapping[str, Any], section: str, **extra: Any) -> T:
    """Builds ``cls`` from a JSON object; keys it does not know are ignored.

    ``extra`` gives fields that do not come from the object itself. Raises MissingKeysError, or ConfigError
    for a wrong type or value.
    """
    absent = missing_keys(cls, raw, section)
    if absent:
        raise MissingKeysError(absent)
    hints = typing.get_type_hints(cls)
    values = {
        field.name: _coerce(_joined(section, field.name), raw[field.name], hints[field.name])
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        if "rule" in field.metadata and field.name in raw and field.name not in extra
    }
    return cls(**values, **extra)


def as_object(name: str, value: object) -> Mapping[str, Any]:
    """The value as a JSON object, or ConfigError."""
    if not isinstance(value, dict):
        raise ConfigError(name, value, "a JSON object")
    return value


def _joined(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name


_SCALAR_NAMES: Mapping[type, str] = types.MappingProxyType(
    {bool: "true or false", int: "an integer", float: "a finite number", str: "a string"}
)


def _coerce(name: str, value: Any, hint: Any) -> Any:
    """``value`` as the annotated type: JSON lists become tuples, integers may stand for floats."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        options = typing.get_args(hint)
        if value is None and type(None) in options:
            return None
        (hint,) = (option for option in options if option is not type(None))
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(name, value, "a list")
        element = typing.get_args(hint)[0]
        return tuple(_coerce(f"{name}[{i}]", v, element) for i, v in enumerate(value))
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, typing.cast(type, hint)):
            raise ConfigError(name, value, "an object")
        return value
    # bool is a subclass of int, and JSON readers accept NaN and Infinity: both are mistakes here.
    accepted = (int, float) if hint is float else (hint,)
    valid = isinstance(value, accepted) and isinstance(value, bool) == (hint is bool)
    if not valid or (isinstance(value, float) and not math.isfinite(value)):
        raise ConfigError(name, value, _SCALAR_NAMES[hint])
    if hint is int and abs(value) > MAX_INTEGER:
        raise ConfigError(name, value, f"an integer of 32 bits (at most {MAX_INTEGER})")
    if hint is not float:
        return value
    try:
        return float(value)
    except OverflowError:
        raise ConfigError(name, value, _SCALAR_NAMES[float]) from None
