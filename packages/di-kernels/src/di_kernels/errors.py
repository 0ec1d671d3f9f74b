"""Typed errors of the package, and how messages of all packages repeat a bad value."""

from __future__ import annotations

MOST_SHOWN = 200
"""Characters of a value that a message repeats."""


class KernelUnavailableError(RuntimeError):
    """An operation was called that the chosen backend does not provide.

    Raised when the operation is *called*, never at import, and names the operation, the backend and what would
    provide it.
    """

    def __init__(self, family: str, name: str, backend: str, remedy: str) -> None:
        super().__init__(family, name, backend, remedy)
        self.family, self.name, self.backend, self.remedy = family, name, backend, remedy

    def __str__(self) -> str:
        return f"operation {self.family}.{self.name} has no {self.backend} kernel: {self.remedy}"


def shown(value: object) -> str:
    """``value`` as a message repeats it: shortened, and by its type where it cannot be written down at all."""
    try:
        text = repr(value)
    except Exception:  # an integer of thousands of digits, or whatever else a caller's object does
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}... ({len(text)} characters)"
