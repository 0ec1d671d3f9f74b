"""Measuring the cost curve, and its cache on disk."""

import dataclasses
import json
import math
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from di_scheduler.cost_curve import CostCurve, CurveCache, CurveKey, CurveMeasurementError, measure_curve
from di_scheduler.errors import ConfigError
from hypothesis import given
from hypothesis import strategies as st

KEY = CurveKey(
    device="cpu, 16 threads",
    software=(("torch", "2.13"), ("di-kernels", "0.1")),
    model="tiny, release",
    sizes=(1, 8),
    stepped=False,
    parallel=(("dp", 2),),
)
CURVE = CostCurve((1, 8), (2.5, 0.1 + 0.2), stepped=False)


class Machine:
    """A device and its clock: run number i takes `seconds(rows, i)`."""

    def __init__(self, seconds: Callable[[int, int], float]) -> None:
        self.now = 1000.0
        self.runs: list[int] = []
        self._seconds = seconds

    def run(self, rows: int) -> None:
        self.now += self._seconds(rows, self.runs.count(rows))
        self.runs.append(rows)

    def clock(self) -> float:
        return self.now


def test_the_warm_up_the_fastest_and_the_slowest_run_do_not_count() -> None:
    times = [100.0, 4.0, 0.5, 1.0, 64.0, 1.0]  # the first is the warm-up; of the rest, 0.5 and 64 are dropped
    machine = Machine(lambda rows, i: times[i] * rows)
    curve = measure_curve(machine.run, [1, 4], stepped=True, clock=machine.clock)
    assert curve == CostCurve((1, 4), (2000.0, 8000.0), stepped=True)
    assert machine.runs == [4] * 6 + [1] * 6


def test_a_clock_that_stands_still_is_named() -> None:
    machine = Machine(lambda rows, i: 0.0 if rows == 8 else 1.0)
    with pytest.raises(CurveMeasurementError, match=r"a step of 8 rows took 0\.0 ms"):
        measure_curve(machine.run, [8, 16], stepped=True, clock=machine.clock)


def test_sizes_are_checked_before_anything_runs() -> None:
    machine = Machine(lambda rows, i: 1.0)
    with pytest.raises(ConfigError, match=r"sizes\[1\] must be an int from 9 .* got 8"):
        measure_curve(machine.run, [8, 8], stepped=True, clock=machine.clock)
    assert machine.runs == []


def test_what_the_run_raises_comes_through() -> None:
    def run(rows: int) -> None:
        raise MemoryError(f"{rows} rows")

    with pytest.raises(MemoryError, match="2 rows"):
        measure_curve(run, [1, 2], stepped=False)


def test_the_default_clock_measures_milliseconds() -> None:
    curve = measure_curve(lambda rows: time.sleep(rows / 100), [1], stepped=True)
    assert 10.0 <= curve.milliseconds[0] < 1000.0


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("sizes", (), "sizes must be a tuple with at least one"),
        ("sizes", [1, 8], "sizes must be a tuple"),
        ("sizes", (0, 8), r"sizes\[0\] must be an int from 1"),
        ("sizes", (8, 1), r"sizes\[1\] must be an int from 9"),
        ("sizes", (1, 2**31), r"sizes\[1\] must be an int from 2 to 2147483647, got 2147483648"),
        ("sizes", (1, 8.0), r"sizes\[1\] must be an int"),
        ("sizes", (True, 8), r"sizes\[0\] must be an int"),
        ("milliseconds", (1.0,), "milliseconds must be a tuple of 2 times"),
        ("milliseconds", (1.0, 0.0), r"milliseconds\[1\] must be a finite float above 0, got 0.0"),
        ("milliseconds", (math.nan, 1.0), r"milliseconds\[0\] must be a finite float above 0, got nan"),
        ("milliseconds", (1.0, math.inf), r"milliseconds\[1\] must be a finite float above 0, got inf"),
        ("milliseconds", (1.0, 2), r"milliseconds\[1\] must be a finite float above 0, got 2"),
        ("stepped", 1, "stepped must be True or False, got 1"),
    ],
)
def test_a_curve_that_is_none_is_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(CURVE, **{field: value})  # type: ignore[arg-type]


OTHER_KEYS: dict[str, Any] = {
    "device": "cpu, 8 threads",
    "software": (("torch", "2.14"), ("di-kernels", "0.1")),
    "model": "tiny, float32",
    "sizes": (1, 9),
    "stepped": True,
    "parallel": (),
}


def test_every_field_of_a_key_tells_curves_apart() -> None:
    """Finding 25 of the engine specification: the reference's key knows neither device nor software."""
    assert set(OTHER_KEYS) == {field.name for field in dataclasses.fields(CurveKey)}
    keys = [KEY, *(dataclasses.replace(KEY, **{name: value}) for name, value in OTHER_KEYS.items())]
    assert len({key.digest() for key in keys}) == len(keys)


def test_the_digest_is_stable_and_ignores_order() -> None:
    """The digest names files that outlive a process, so it may not change by accident."""
    assert KEY.digest() == "8fe5b30b5d469783cdf1508f07830b3795e3d3add17b788146f54545a91d6dee"
    turned = dataclasses.replace(KEY, software=KEY.software[::-1])
    assert turned.digest() == KEY.digest()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("device", "", "device must be a text that is not empty"),
        ("model", None, "model must be a text that is not empty, got None"),
        ("software", (("torch", 2),), r"software must be a tuple of \(str, str\) pairs"),
        ("software", [("torch", "2")], r"software must be a tuple of \(str, str\) pairs"),
        ("software", (("torch", "2"), ("torch", "3")), "software must name nothing twice"),
        ("parallel", (("dp", True),), r"parallel must be a tuple of \(str, int\) pairs"),
        ("parallel", ("dp",), r"parallel must be a tuple of \(str, int\) pairs"),
        ("sizes", (), "sizes must be a tuple"),
        ("stepped", None, "stepped must be True or False"),
    ],
)
def test_a_key_that_is_none_is_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(KEY, **{field: value})  # type: ignore[arg-type]


@given(
    milliseconds=st.tuples(*[st.floats(0, exclude_min=True, allow_infinity=False)] * 2),
    text=st.text(min_size=1),
)
def test_a_stored_curve_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, milliseconds: tuple[float, float], text: str
) -> None:
    cache = CurveCache(tmp_path_factory.mktemp("curves"))
    key = dataclasses.replace(KEY, model=text)
    curve = CostCurve(KEY.sizes, milliseconds, KEY.stepped)
    assert cache.load(key) is None
    assert cache.store(key, curve)
    assert cache.load(key) == curve
    assert cache.load(KEY) is None or key == KEY


def test_measured_once_until_it_is_too_old(tmp_path: Path) -> None:
    now = 1_000_000.0
    cache = CurveCache(tmp_path / "new" / "folder", ttl_seconds=60.0, clock=lambda: now)
    measured = []

    def measure() -> CostCurve:
        measured.append(now)
        return CURVE

    def load_after(seconds: float) -> None:
        nonlocal now
        now += seconds
        assert cache.load_or_measure(KEY, measure) == CURVE

    load_after(0.0)
    load_after(60.0)
    assert measured == [1_000_000.0]
    load_after(0.5)
    assert measured == [1_000_000.0, 1_000_060.5]
    load_after(-1.0)  # the clock was set back: an age below 0 says nothing about the age
    assert measured == [1_000_000.0, 1_000_060.5, 1_000_059.5]


def test_a_curve_of_another_key_is_not_stored(tmp_path: Path) -> None:
    cache = CurveCache(tmp_path)
    for other in (CostCurve((1, 9), (1.0, 2.0), stepped=False), dataclasses.replace(CURVE, stepped=True)):
        with pytest.raises(ConfigError, match="curve must have sizes="):
            cache.load_or_measure(KEY, partial(dataclasses.replace, other))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ttl", [0.0, -1.0, math.nan])
def test_a_lifetime_that_is_none_is_refused(tmp_path: Path, ttl: float) -> None:
    with pytest.raises(ConfigError, match="ttl_seconds must be above 0"):
        CurveCache(tmp_path, ttl_seconds=ttl)


def stored(cache: CurveCache) -> dict[str, Any]:
    assert cache.store(KEY, CURVE)
    record: dict[str, Any] = json.loads(cache.path(KEY).read_text())
    return record


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"null", b"[]", b"{", b"[" * 100_000, b"[[1, 2.5], [8, 0.3]]", b"\0" * 4096],
    ids=repr,
)
def test_a_foreign_file_is_ignored_and_then_replaced(tmp_path: Path, content: bytes) -> None:
    cache = CurveCache(tmp_path)
    cache.path(KEY).write_bytes(content)
    assert cache.load(KEY) is None
    assert cache.path(KEY).read_bytes() == content
    assert cache.load_or_measure(KEY, lambda: CURVE) == CURVE
    assert cache.load(KEY) == CURVE


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key", None),
        ("key", KEY.description() | {"model": "another"}),
        ("key", KEY.description() | {"unit": "s"}),
        ("measured_at", None),
        ("measured_at", "yesterday"),
        ("measured_at", math.nan),
        ("milliseconds", None),
        ("milliseconds", [1.0]),
        ("milliseconds", [1.0, -1.0]),
        ("milliseconds", [1.0, math.nan]),
        ("milliseconds", [1.0, "2.0"]),
        ("milliseconds", [1.0, 2.0, 3.0]),
    ],
)
def test_a_damaged_record_is_ignored(tmp_path: Path, field: str, value: object) -> None:
    cache = CurveCache(tmp_path)
    record = stored(cache)
    cache.path(KEY).write_text(json.dumps(record))
    assert cache.load(KEY) == CURVE  # so that it is the change that makes the difference
    cache.path(KEY).write_text(json.dumps(record | {field: value}))
    assert cache.load(KEY) is None
    del record[field]
    cache.path(KEY).write_text(json.dumps(record))
    assert cache.load(KEY) is None


def test_every_cut_of_a_file_is_ignored(tmp_path: Path) -> None:
    cache = CurveCache(tmp_path)
    stored(cache)
    whole = cache.path(KEY).read_bytes()
    for length in range(len(whole)):
        cache.path(KEY).write_bytes(whole[:length])
        assert cache.load(KEY) is None


def test_a_file_system_that_refuses_is_survived(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = CurveCache(tmp_path / "file")
    assert cache.load_or_measure(KEY, lambda: CURVE) == CURVE
    assert not cache.store(KEY, CURVE)
    assert "cannot keep the cost curve" in caplog.text

    cache = CurveCache(tmp_path)
    cache.path(KEY).mkdir()
    assert cache.load_or_measure(KEY, lambda: CURVE) == CURVE
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["file", cache.path(KEY).name])


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CurveCache(tmp_path)
    stored(cache)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert not cache.store(KEY, dataclasses.replace(CURVE, milliseconds=(7.0, 8.0)))
    assert cache.load(KEY) == CURVE
    assert list(tmp_path.iterdir()) == [cache.path(KEY)]


def test_concurrent_writers_and_readers_see_whole_curves(tmp_path: Path) -> None:
    curves = [CostCurve(KEY.sizes, (float(i), float(i)), KEY.stepped) for i in range(1, 5)]
    cache = CurveCache(tmp_path)
    assert cache.store(KEY, curves[0])
    seen: list[CostCurve | None] = []

    def write(curve: CostCurve) -> None:
        for _ in range(20):
            CurveCache(tmp_path).store(KEY, curve)

    def read() -> None:
        seen.extend(cache.load(KEY) for _ in range(100))

    threads = [threading.Thread(target=write, args=(curve,)) for curve in curves]
    threads += [threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert len(seen) == 100
    assert set(seen) <= set(curves)
    assert list(tmp_path.iterdir()) == [cache.path(KEY)]
