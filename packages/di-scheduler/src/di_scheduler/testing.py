"""A stand-in for a device, to test and measure a scheduler without a model."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from di_scheduler import _native
from di_scheduler._checks import check_int, check_number
from di_scheduler._native import StepPlan
from di_scheduler.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class StubResult:
    """What a step gave, as `Scheduler.commit` takes it."""

    tokens: NDArray[np.int32]
    counts: NDArray[np.int32]
    drafts: NDArray[np.int32] | None


class StubDevice:
    """Takes plans in order, keeps a core busy for `base_us + row_us * rows` microseconds each, and makes tokens up.

    A worker thread without the interpreter lock computes what is submitted, one step after another, as a real device
    does; a plan with sources is resolved just before it begins. It accepts a varying part of the drafts and proposes as
    many new ones as a step can hold. Raises `ConfigError` for a time that is negative or not finite.
    """

    def __init__(self, base_us: float, row_us: float = 0.0, max_draft_tokens: int = 0) -> None:
        for name, value in (("base_us", base_us), ("row_us", row_us)):
            if check_number(name, value) < 0:
                raise ConfigError(f"{name} must be at least 0, got {value!r}")
        self._max_draft_tokens = check_int("max_draft_tokens", max_draft_tokens, 0)
        self._native = _native.StubDevice(base_us, row_us)

    def submit(self, plan: StepPlan) -> None:
        """Hand over a plan with rows."""
        self._native.submit(plan)

    def wait(self, timeout: float = 10.0) -> StubResult:
        """The oldest result not taken yet. Raises `TimeoutError` when none comes within `timeout` seconds."""
        result = self._native.wait(timeout)
        if result is None:
            raise TimeoutError(f"the stub device gave no result within {timeout} s")
        tokens, counts, drafts = result
        k = self._max_draft_tokens
        return StubResult(tokens, counts, drafts.reshape(-1, k) if k else None)

    @property
    def busy_seconds(self) -> float:
        """Time spent in steps since `reset_times`."""
        return self._native.busy_seconds

    @property
    def span_seconds(self) -> float:
        """Time from the first step to the end of the last one; what exceeds `busy_seconds` was lost to the host."""
        return self._native.span_seconds

    def reset_times(self) -> None:
        """Count anew."""
        self._native.reset_times()
