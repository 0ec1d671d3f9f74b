"""Errors of the engine. Each names the field, its value and what is allowed, in its message and as attributes."""

from __future__ import annotations

MOST_SHOWN = 200
"""Characters of a value that a message repeats."""


class EngineConfigError(ValueError):
    """A setting of the engine is out of range or contradicts the model, the machine or another setting."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(field, value, allowed)
        self.field, self.value, self.allowed = field, value, allowed

    def __str__(self) -> str:
        return f"{self.field}: got {shown(self.value)}, allowed: {self.allowed}"


class RequestError(ValueError):
    """A request was refused at the door; nothing of it is left in the engine.

    ``field`` is the part of the request at fault: ``request_id``, ``prompt``, ``params`` or a field of
    :class:`~di_spec.SamplingParams`.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(field, message)
        self.field, self.message = field, message

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class EngineClosedError(RuntimeError):
    """The engine was used after ``close()``."""

    def __str__(self) -> str:
        return "the engine is closed"


def shown(value: object) -> str:
    """``value`` as a message repeats it: shortened, and by its type where it cannot be written down at all."""
    try:
        text = repr(value)
    except Exception:  # an integer of thousands of digits, or whatever else a caller's object does
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}... ({len(text)} characters)"
