"""What the simulator refuses, and what must not happen to it."""

from __future__ import annotations

from di_kernels.errors import shown


class SimulationConfigError(ValueError):
    """A setting of a simulation, a cost curve or a synthetic trace that is out of range."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(field, value, allowed)
        self.field, self.value, self.allowed = field, value, allowed

    def __str__(self) -> str:
        return f"{self.field}: got {shown(self.value)}, allowed: {self.allowed}"


class TraceError(ValueError):
    """A line of a trace that is no request. ``line`` counts from 1; ``field`` is empty when the line is no object."""

    def __init__(self, line: int, field: str, value: object, allowed: str) -> None:
        super().__init__(line, field, value, allowed)
        self.line, self.field, self.value, self.allowed = line, field, value, allowed

    def __str__(self) -> str:
        where = f"line {self.line}, {self.field}" if self.field else f"line {self.line}"
        return f"{where}: got {shown(self.value)}, allowed: {self.allowed}"


class NoRankError(RuntimeError):
    """A request came while no rank has reported lately."""

    def __init__(self, ranks: int) -> None:
        super().__init__(ranks)
        self.ranks = ranks

    def __str__(self) -> str:
        return f"none of {self.ranks} ranks can take a request: all are silent"


class StuckError(RuntimeError):
    """The scheduler plans nothing although requests are unfinished and nothing is in flight."""

    def __init__(self, unfinished: int, now: float) -> None:
        super().__init__(unfinished, now)
        self.unfinished, self.now = unfinished, now

    def __str__(self) -> str:
        return f"{self.unfinished} requests are unfinished at {self.now:g} s, and no rank plans a step"


class PlotUnavailableError(RuntimeError):
    """A plot was asked for where matplotlib does not import."""

    def __init__(self, reason: ImportError) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"plots need matplotlib, which does not import ({self.reason}); install di-engine[plot]"
