"""The measured cost of a step by its rows: measuring it, and keeping it on disk between starts."""

import hashlib
import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from di_scheduler._checks import INT32_MAX
from di_scheduler.errors import ConfigError

_log = logging.getLogger(__name__)

TIMED_RUNS = 5
"""Timed runs of each size; the fastest and the slowest are dropped."""


class CurveMeasurementError(RuntimeError):
    """A measurement that makes no curve, because the clock did not advance; the message names the size."""


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Milliseconds that a step takes, by its rows. Raises `ConfigError` naming the first field that is out of range."""

    sizes: tuple[int, ...]
    """Rows of each measured point, at least 1 and strictly increasing; at least one point."""
    milliseconds: tuple[float, ...]
    """What a step of so many rows takes, finite and above 0."""
    stepped: bool
    """True: steps are padded to the next size (graphs), so they cost what that size costs, and none is larger than the
    last. False: linear between points, the first time below them, the last slope (if rising) beyond them."""

    def __post_init__(self) -> None:
        _check_sizes(self.sizes)
        _check_flag("stepped", self.stepped)
        if not isinstance(self.milliseconds, tuple) or len(self.milliseconds) != len(self.sizes):
            raise ConfigError(
                f"milliseconds must be a tuple of {len(self.sizes)} times, one for each size, "
                f"got {self.milliseconds!r}"
            )
        for i, value in enumerate(self.milliseconds):
            if not isinstance(value, float) or not math.isfinite(value) or value <= 0.0:
                raise ConfigError(f"milliseconds[{i}] must be a finite float above 0, got {value!r}")


@dataclass(frozen=True, slots=True)
class CurveKey:
    """Everything that a measured curve depends on; curves of different keys are never mixed up.

    Raises `ConfigError` naming the first field that is out of range.
    """

    device: str
    """The device and how it is used, e.g. its name, backend and number of threads."""
    software: tuple[tuple[str, str], ...]
    """Name and version of what computes the step: kernels, tensor library, driver."""
    model: str
    """What runs: the checkpoint and the numerics it is loaded with."""
    sizes: tuple[int, ...]
    """Rows of each point, as in `CostCurve`."""
    stepped: bool
    """As in `CostCurve`."""
    parallel: tuple[tuple[str, int], ...] = ()
    """How the model is spread over devices, e.g. (("dp", 2), ("ep", 8))."""

    def __post_init__(self) -> None:
        _check_text("device", self.device)
        _check_text("model", self.model)
        _check_sizes(self.sizes)
        _check_flag("stepped", self.stepped)
        for name, pairs, kind in (("software", self.software, str), ("parallel", self.parallel, int)):
            _check_pairs(name, pairs, kind)

    def description(self) -> dict[str, Any]:
        """The key as JSON values, without regard to the order in which versions and sizes of groups were given."""
        fields = asdict(self) | {"software": dict(self.software), "parallel": dict(self.parallel)}
        return fields | {"sizes": list(self.sizes), "unit": "ms"}

    def digest(self) -> str:
        """SHA-256 of the description in canonical JSON, 64 hexadecimal digits."""
        text = json.dumps(self.description(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode("ascii")).hexdigest()


def measure_curve(
    run: Callable[[int], None],
    sizes: Sequence[int],
    *,
    stepped: bool,
    clock: Callable[[], float] = time.perf_counter,
) -> CostCurve:
    """Time `run(rows)`, which returns when a step of so many rows is finished, for each of `sizes`.

    Largest size first, so that memory is claimed once. One run to warm up and `TIMED_RUNS` timed ones; the time of a
    size is the mean of those left without the fastest and the slowest (decoding spec, 10.4). `clock` gives seconds.

    Raises `ConfigError` for sizes that make no curve, before anything runs; `CurveMeasurementError` if by the clock a
    size took no time; and whatever `run` raises.
    """
    ladder = tuple(sizes)
    _check_sizes(ladder)
    _check_flag("stepped", stepped)
    measured = [_measure(run, rows, clock) for rows in reversed(ladder)]
    return CostCurve(ladder, tuple(reversed(measured)), stepped)


def _measure(run: Callable[[int], None], rows: int, clock: Callable[[], float]) -> float:
    run(rows)
    seconds = []
    for _ in range(TIMED_RUNS):
        start = clock()
        run(rows)
        seconds.append(clock() - start)
    kept = sorted(seconds)[1:-1]
    milliseconds = math.fsum(kept) / len(kept) * 1e3
    if not (math.isfinite(milliseconds) and milliseconds > 0.0):
        raise CurveMeasurementError(
            f"a step of {rows} rows took {milliseconds} ms by the clock, which must be above 0: {seconds} s"
        )
    return milliseconds


class CurveCache:
    """Curves on disk, one file a key, for at most `ttl_seconds` after they were measured.

    Any number of processes may share the directory: a file appears whole or not at all, and the last writer of a key
    wins. A file that is damaged, too old, from the future, or of something else counts as absent and is left alone.
    A cache must not stop an engine: what the file system refuses is logged and counts as absent too. Nothing is ever
    deleted; the directory may be, at any time.
    """

    def __init__(
        self, directory: Path, *, ttl_seconds: float = 3600.0, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` gives seconds that other processes agree on. Raises `ConfigError` for a time that is not positive."""
        if not ttl_seconds > 0.0:
            raise ConfigError(f"ttl_seconds must be above 0, got {ttl_seconds!r}")
        self._directory = directory
        self._ttl_seconds = ttl_seconds
        self._clock = clock

    def path(self, key: CurveKey) -> Path:
        """The file of a key, whether it exists or not."""
        return self._directory / f"{key.digest()}.json"

    def load(self, key: CurveKey) -> CostCurve | None:
        """The stored curve of the key, or None."""
        path = self.path(key)
        try:
            record = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("ignoring the cost curve in %s: %s", path, error)
            return None
        return self._parse(record, key)

    def _parse(self, record: Any, key: CurveKey) -> CostCurve | None:
        """The curve of a decoded file, or None unless it is a whole record of this key that is still good."""
        match record:
            case {
                "key": dict(description),
                "measured_at": float(measured_at),
                "milliseconds": list(milliseconds),
            }:
                fresh = 0.0 <= self._clock() - measured_at <= self._ttl_seconds
                if not fresh or description != key.description():
                    return None
            case _:
                return None
        try:
            return CostCurve(key.sizes, tuple(milliseconds), key.stepped)
        except ConfigError:
            return None

    def store(self, key: CurveKey, curve: CostCurve) -> bool:
        """Keep a curve that was measured just now. False if the file system refuses.

        Raises `ConfigError` if the curve has other sizes, or another way to read them, than the key.
        """
        _check_belongs(curve, key)
        record = {
            "key": key.description(),
            "measured_at": float(self._clock()),
            "milliseconds": curve.milliseconds,
        }
        path = self.path(key)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            _write_atomically(path, json.dumps(record).encode("ascii"))
        except OSError as error:
            _log.warning("cannot keep the cost curve in %s: %s", path, error)
            return False
        return True

    def load_or_measure(self, key: CurveKey, measure: Callable[[], CostCurve]) -> CostCurve:
        """The stored curve of the key, or else what `measure()` gives, which is then stored.

        Raises `ConfigError` if that is no curve of the key, and whatever `measure` raises.
        """
        curve = self.load(key)
        if curve is None:
            curve = measure()
            self.store(key, curve)
        return curve


def _write_atomically(path: Path, content: bytes) -> None:
    """Write a file that others see whole or not at all, even after a crash."""
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _check_belongs(curve: CostCurve, key: CurveKey) -> None:
    if (curve.sizes, curve.stepped) != (key.sizes, key.stepped):
        raise ConfigError(
            f"curve must have sizes={key.sizes} and stepped={key.stepped} like its key, "
            f"got sizes={curve.sizes} and stepped={curve.stepped}"
        )


def _check_sizes(sizes: tuple[int, ...]) -> None:
    if not isinstance(sizes, tuple) or not sizes:
        raise ConfigError(f"sizes must be a tuple with at least one number of rows, got {sizes!r}")
    above = 0
    for i, size in enumerate(sizes):
        if type(size) is not int or not above < size <= INT32_MAX:
            raise ConfigError(f"sizes[{i}] must be an int from {above + 1} to {INT32_MAX}, got {size!r}")
        above = size


def _check_flag(name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {value!r}")


def _check_text(name: str, value: str) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} must be a text that is not empty, got {value!r}")


def _check_pairs(name: str, pairs: Sequence[tuple[str, object]], kind: type) -> None:
    whole = isinstance(pairs, tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs)
    if not whole or not all(isinstance(key, str) and type(value) is kind for key, value in pairs):
        raise ConfigError(f"{name} must be a tuple of (str, {kind.__name__}) pairs, got {pairs!r}")
    if len({key for key, _ in pairs}) != len(pairs):
        raise ConfigError(f"{name} must name nothing twice, got {pairs!r}")
