"""Traces and cost curves: what is read, what is drawn, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from di_engine.simulator import (
    FixedLengths,
    LogNormalLengths,
    SimulationConfigError,
    StepCurve,
    SyntheticTrace,
    TraceError,
    ZipfLengths,
    parse_lengths,
    read_curve,
    read_trace,
)
from di_engine.simulator.report import distribution


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_trace_is_read_in_order_of_arrival_with_defaults(tmp_path: Path) -> None:
    trace = read_trace(
        written(
            tmp_path / "trace.jsonl",
            '{"arrival": 2, "prompt": 5, "output": 6, "priority": -1, "user": 900}',
            "",
            '{"arrival": 0.5, "prompt": 7, "output": 8}',
        )
    )
    assert trace.arrival.tolist() == [0.5, 2.0]
    assert trace.prompt.tolist() == [7, 5]
    assert trace.output.tolist() == [8, 6]
    assert trace.priority.tolist() == [0, -1]
    assert trace.user.tolist() == [0, 1]  # numbered anew: large numbers cost nothing
    assert trace.num_users == 2


def test_an_empty_file_is_an_empty_trace(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path / "trace.jsonl", ""))
    assert len(trace) == 0
    assert (trace.num_users, trace.longest) == (0, 0)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("{", ""),
        ("[1, 2]", ""),
        ("\xff", ""),
        ('{"prompt": 1, "output": 1}', "arrival"),
        ('{"arrival": "0", "prompt": 1, "output": 1}', "arrival"),
        ('{"arrival": -1, "prompt": 1, "output": 1}', "arrival"),
        ('{"arrival": NaN, "prompt": 1, "output": 1}', "arrival"),
        ('{"arrival": 1e999, "prompt": 1, "output": 1}', "arrival"),
        ('{"arrival": 0, "output": 1}', "prompt"),
        ('{"arrival": 0, "prompt": 0, "output": 1}', "prompt"),
        ('{"arrival": 0, "prompt": 1.5, "output": 1}', "prompt"),
        ('{"arrival": 0, "prompt": true, "output": 1}', "prompt"),
        ('{"arrival": 0, "prompt": 1, "output": 0}', "output"),
        ('{"arrival": 0, "prompt": 1, "output": 3000000000}', "output"),
        ('{"arrival": 0, "prompt": 1, "output": 1, "user": -1}', "user"),
        ('{"arrival": 0, "prompt": 1, "output": 1, "priority": "high"}', "priority"),
        ('{"arrival": 0, "prompt": 1, "output": 1, "prio": 1}', "prio"),
    ],
)
def test_a_bad_line_is_named_with_its_field(tmp_path: Path, line: str, field: str) -> None:
    good = '{"arrival": 0, "prompt": 1, "output": 1}'
    path = tmp_path / "trace.jsonl"
    path.write_bytes("\n".join([good, good, line]).encode("latin-1"))
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert (caught.value.line, caught.value.field) == (3, field)
    assert str(caught.value).startswith(f"line 3, {field}: got" if field else "line 3: got")


def test_a_curve_takes_the_terms_that_are_given(tmp_path: Path) -> None:
    path = written(tmp_path / "curve.json", '{"constant": 0.5, "per_row": 0.25}')
    curve = read_curve(path)
    assert curve == StepCurve(constant=0.5, per_row=0.25)
    assert curve.device_seconds(rows=4, context=0) == 1.5
    assert StepCurve(1.0, 0.0, 0.5).device_seconds(rows=9, context=4) == 3.0


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("nonsense", "curve"),
        ("[0.1]", "curve"),
        ('{"constant": 0}', "constant"),
        ('{"constant": "1"}', "constant"),
        ('{"per_row": -1e-6}', "per_row"),
        ('{"host": NaN}', "host"),
        ('{"per_context_token": Infinity}', "per_context_token"),
        ('{"per_token": 1}', "per_token"),
    ],
)
def test_a_bad_curve_is_named_with_its_term(tmp_path: Path, text: str, field: str) -> None:
    with pytest.raises(SimulationConfigError) as caught:
        read_curve(written(tmp_path / "curve.json", text))
    assert caught.value.field == field


def test_synthetic_traces_repeat_and_their_parts_are_independent() -> None:
    plan = SyntheticTrace(requests=500, users=7, classes=(1.0, 3.0), seed=3)
    one, same = plan.generate(), plan.generate()
    for field in ("arrival", "prompt", "output", "priority", "user"):
        assert (getattr(one, field) == getattr(same, field)).all()
    faster = dataclasses.replace(plan, rate=20.0).generate()
    assert (faster.prompt == one.prompt).all()
    assert faster.arrival == pytest.approx(one.arrival / 2)
    assert not (dataclasses.replace(plan, seed=4).generate().prompt == one.prompt).all()


def test_synthetic_traces_have_the_proportions_asked_for() -> None:
    plan = SyntheticTrace(requests=20_000, rate=50.0, users=4, classes=(1.0, 3.0))
    trace = plan.generate()
    assert len(trace) / trace.arrival[-1] == pytest.approx(50.0, rel=0.05)
    assert (np.diff(trace.arrival) > 0).all()
    assert (trace.priority == 1).mean() == pytest.approx(0.75, abs=0.02)
    assert np.bincount(trace.user) == pytest.approx([5000] * 4, rel=0.05)
    bursty = dataclasses.replace(plan, burst=8.0).generate()
    assert len(bursty) == 20_000
    assert len(bursty) / bursty.arrival[-1] == pytest.approx(50.0, rel=0.1)
    assert len(np.unique(bursty.arrival)) == pytest.approx(20_000 / 8, rel=0.1)


def test_lengths_follow_their_distributions() -> None:
    random = np.random.default_rng(0)
    zipf = ZipfLengths(1.0, 100).draw(random, 100_000)
    assert (zipf.min(), zipf.max()) == (1, 100)
    counts = np.bincount(zipf)
    assert counts[1] / counts[2] == pytest.approx(2.0, rel=0.05)
    assert counts[1] / counts[10] == pytest.approx(10.0, rel=0.1)
    normal = LogNormalLengths(100, 0.5, 400).draw(random, 100_000)
    assert np.median(normal) == pytest.approx(100, rel=0.02)
    assert normal.max() == 400
    assert np.log(normal[normal < 400]).std() == pytest.approx(0.5, rel=0.05)
    assert FixedLengths(9).draw(random, 3).tolist() == [9, 9, 9]


def test_distributions_have_texts() -> None:
    assert parse_lengths("128") == FixedLengths(128)
    assert parse_lengths("zipf:1.5:64") == ZipfLengths(1.5, 64)
    assert parse_lengths("lognormal:64:0.5:512") == LogNormalLengths(64.0, 0.5, 512)
    for text in ("", "zipf", "zipf:1", "zipf:x:4", "lognormal:1:2", "1.5", "uniform:1:2", "zipf:nan:5", "0"):
        with pytest.raises(SimulationConfigError):
            parse_lengths(text)


@pytest.mark.parametrize(
    "settings",
    [
        {"requests": -1},
        {"rate": 0.0},
        {"rate": float("inf")},
        {"burst": 0.5},
        {"users": 0},
        {"classes": ()},
        {"classes": (0.0, 0.0)},
        {"classes": (1.0, -1.0)},
        {"seed": -1},
    ],
)
def test_synthetic_settings_out_of_range_are_named(settings: dict[str, object]) -> None:
    with pytest.raises(SimulationConfigError) as caught:
        SyntheticTrace(**settings)
    assert caught.value.field in settings


def test_percentiles_are_values_that_so_many_do_not_exceed() -> None:
    times = distribution([3.0, 1.0, 2.0], [1, 97, 2])
    assert times is not None
    assert (times.count, times.p50, times.p90, times.p99, times.worst) == (100, 1.0, 1.0, 2.0, 3.0)
    assert times.mean == pytest.approx((97 + 4 + 3) / 100)
    assert distribution([]) is None
    expanded = distribution(json.loads("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"))
    assert expanded is not None
    assert (expanded.p50, expanded.p90, expanded.p99) == (5.0, 9.0, 10.0)
