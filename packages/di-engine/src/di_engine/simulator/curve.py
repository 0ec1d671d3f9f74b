"""What a step costs in virtual time."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

from di_engine.simulator._checks import check_number
from di_engine.simulator.errors import SimulationConfigError
from di_engine.simulator.limits import LEAST_STEP, MOST_PER_TOKEN, MOST_STEP


@dataclass(frozen=True, slots=True)
class StepCurve:
    """Seconds of a step: ``constant + per_row * rows + per_context_token * context`` on the device, ``host`` before it.

    *Rows* are the tokens computed; *context* is, summed over the sequences of the step, the position behind the last
    row: what attention may have to read once. The defaults are chosen, not measured: they resemble a large
    mixture-of-experts model on one server, where a decode step of 64 requests takes 17 ms and prefill runs at 35,000
    tokens a second. Raises :class:`SimulationConfigError` naming the first term that is out of range.
    """

    constant: float = 0.015
    """Seconds, at least a microsecond: weights are read whatever the rows are."""
    per_row: float = 20e-6
    """Seconds a row."""
    per_context_token: float = 2e-9
    """Seconds a token of context."""
    host: float = 0.0
    """Seconds to plan, prepare and commit a step; behind the device's work when scheduling is asynchronous."""

    def __post_init__(self) -> None:
        check_number("constant", self.constant, LEAST_STEP, MOST_STEP)  # at no cost, time would stand still
        check_number("per_row", self.per_row, 0, MOST_PER_TOKEN)
        check_number("per_context_token", self.per_context_token, 0, MOST_PER_TOKEN)
        check_number("host", self.host, 0, MOST_STEP)

    def device_seconds(self, rows: int, context: int) -> float:
        """Seconds that the device computes a step of so many rows."""
        return self.constant + self.per_row * rows + self.per_context_token * context


def read_curve(path: Path) -> StepCurve:
    """The curve of a JSON file: an object with any of the fields of :class:`StepCurve`, in seconds.

    Raises :class:`SimulationConfigError` for anything else, and OSError when the file cannot be read.
    """
    known = [field.name for field in fields(StepCurve)]
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise SimulationConfigError("curve", str(path), f"a JSON file ({error})") from error
    if not isinstance(values, dict):
        raise SimulationConfigError("curve", values, f"an object with the fields {', '.join(known)}")
    for name in values:
        if name not in known:
            raise SimulationConfigError(name, values[name], f"a field out of {', '.join(known)}")
    return StepCurve(**values)
