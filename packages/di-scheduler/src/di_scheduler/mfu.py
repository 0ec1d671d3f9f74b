"""How much of the machine's peak a model's steps reach (scheduler spec, 15)."""

import time
from collections import deque
from collections.abc import Callable

from di_scheduler._checks import check_int
from di_scheduler.errors import ConfigError


class MfuMeter:
    """Model FLOPs utilisation over the last steps: FLOPs done, over the time taken and the peak of the devices.

    `peak_flops`: FP8-equivalent FLOP/s of one device, that is twice its BF16 peak. `devices`: that share the work of
    the recorded FLOPs (context-parallel size). `window`: steps looked at. `clock`: seconds, never going back. Raises
    `ConfigError` for a peak that is not positive or counts below 1.
    """

    def __init__(
        self,
        peak_flops: float,
        *,
        devices: int = 1,
        window: int = 100,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < peak_flops < float("inf"):
            raise ConfigError(f"peak_flops must be a positive number of FLOP/s, got {peak_flops!r}")
        check_int("devices", devices, 1)
        check_int("window", window, 1)
        self.peak_flops = peak_flops
        self.devices = devices
        self._clock = clock
        # One more than steps: the end of the step before the window is where the window begins.
        self._ends: deque[tuple[float, float]] = deque(maxlen=window + 1)

    def record(self, flops: float) -> None:
        """Call at the end of a step with the FLOPs of the step. Raises `ValueError` for a negative number."""
        if not flops >= 0:
            raise ValueError(f"flops must be at least 0, got {flops!r}")
        self._ends.append((self._clock(), float(flops)))

    def restart(self) -> None:
        """Forget the steps so far, for instance after idle time that should not count."""
        self._ends.clear()

    @property
    def flops_per_second(self) -> float | None:
        """FLOP/s of all devices over the window; None before two steps have ended at different times.

        The first recorded step gives the start of the time and its FLOPs do not count (scheduler spec, 15).
        """
        if len(self._ends) < 2:
            return None
        elapsed = self._ends[-1][0] - self._ends[0][0]
        if elapsed <= 0:
            return None
        return (sum(flops for _, flops in self._ends) - self._ends[0][1]) / elapsed

    @property
    def utilization(self) -> float | None:
        """`flops_per_second` as a fraction of the peak of the devices; None when that is None."""
        achieved = self.flops_per_second
        return None if achieved is None else achieved / self.devices / self.peak_flops
