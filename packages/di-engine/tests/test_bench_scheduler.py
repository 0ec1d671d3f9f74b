"""``di bench scheduler``: that the right steps are timed, and beside what."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from di_engine.benchmark import timing as timing_module
from di_engine.benchmark.host_work import STEP_US, measure_host_work
from di_engine.benchmark.peers.process import PeerError, measure_vllm, vllm_interpreter
from di_engine.benchmark.scheduler import CHUNK_ROWS, DRAFT_TOKENS, Case, StepLoop, measure_scheduler
from di_engine.benchmark.timing import ForeignLoad, LoadMeter, summarize_timings, time_calls
from di_engine.cli import run
from di_scheduler import Scheduler, StepPlan

RUNNING = 5

PEER = """
import json, sys
steps, running = int(sys.argv[2]), [int(x) for x in sys.argv[4:]]
print(json.dumps({"version": "9.9", "seconds": {n: [0.5 + n, 0.25 + n][:steps] for n in running}}))
"""
"""A script with the manners of ``vllm_scheduler.py``."""


@pytest.mark.parametrize("case", Case)
def test_a_timed_step_holds_what_its_case_says(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[StepPlan] = []
    plan_step = Scheduler.plan

    def plan(self: Scheduler) -> StepPlan:
        plans.append(plan_step(self))
        return plans[-1]

    monkeypatch.setattr(Scheduler, "plan", plan)
    loop = StepLoop(case, RUNNING, steps=40)
    plans.clear()
    seconds = [loop.step() for _ in range(40)]
    assert all(second > 0 for second in seconds)
    assert len(plans) == 40
    rows_of_decodes = RUNNING * (1 + DRAFT_TOKENS if case is Case.DRAFTS else 1)
    rows_of_prompts = CHUNK_ROWS if case is Case.MIXED else 0
    for made in plans:
        assert int(made.decodes.sum()) == RUNNING
        assert int(made.q_len[made.decodes].sum()) == rows_of_decodes
        assert made.num_rows == rows_of_decodes + rows_of_prompts
        assert bool((made.source >= 0).any()) == (case is Case.ASYNCHRONOUS)


def test_figures_are_per_step_and_per_request() -> None:
    seen = []
    timings = measure_scheduler([2, 4], steps=20, progress=seen.append)
    assert seen == timings
    assert [(t.case, t.running) for t in timings] == [(case, n) for n in (2, 4) for case in Case]
    for timing in timings:
        assert 0 < timing.step.minimum <= timing.step.p10 <= timing.step.median
        assert timing.step.count == 20
        assert timing.per_request == timing.step.minimum / timing.running


def test_host_work_is_what_the_device_waits_between_steps() -> None:
    works = measure_host_work([3], segments=5)
    assert [(work.asynchronous, work.running) for work in works] == [(False, 3), (True, 3)]
    for work in works:
        assert work.visible.minimum > 0
        assert work.visible.count == 5
    assert works[0].visible.minimum < 100 * STEP_US * 1e-6


def test_timing_takes_the_least_and_a_calls_own_clock() -> None:
    timing = summarize_timings([5.0, 1.0, 4.0, 3.0, 2.0])
    assert (timing.count, timing.minimum, timing.p10, timing.median) == (5, 1.0, 1.0, 3.0)
    assert time_calls(lambda: 7.0, 3) == [7.0] * 3
    assert all(seconds >= 0.002 for seconds in time_calls(lambda: time.sleep(0.002), 2))


def test_foreign_work_is_what_is_busy_without_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 2 seconds the cores were busy for 3, of which 1 was ours."""
    readings = {"_busy_seconds": iter([10.0, 13.0]), "_own_seconds": iter([1.0, 2.0])}
    for name, values in readings.items():
        monkeypatch.setattr(timing_module, name, lambda values=values: next(values))
    clock = iter([100.0, 102.0])
    monkeypatch.setattr(timing_module.time, "monotonic", lambda: next(clock))
    assert LoadMeter().read() == ForeignLoad(1.0, os.cpu_count() or 1)


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the machine does not tell its load")
def test_load_is_read_from_the_machine() -> None:
    meter = LoadMeter()
    assert meter.read() is None  # too soon
    time.sleep(0.15)
    load = meter.read()
    assert load is not None
    assert 0 <= load.cores <= load.of + 0.2


def test_a_machine_without_a_free_core_disturbs() -> None:
    assert ForeignLoad(1.5, 2).disturbs
    assert not ForeignLoad(0.5, 2).disturbs


def test_a_peer_is_timed_in_its_own_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "peer.py"
    script.write_text(PEER)
    found = measure_vllm(Path(sys.executable), [8, 64], 2, script)
    assert (found.name, found.version) == ("vLLM", "9.9")
    assert {count: timing.minimum for count, timing in found.steps.items()} == {8: 8.25, 64: 64.25}


def test_a_peer_that_fails_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    script = tmp_path / "peer.py"
    script.write_text("raise SystemExit('no vllm here')")
    with pytest.raises(PeerError, match="exit code 1: no vllm here"):
        measure_vllm(Path(sys.executable), [8], 2, script)
    with pytest.raises(PeerError, match="No such file"):
        measure_vllm(tmp_path / "python", [8], 2, script)


def test_the_command_prints_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "scheduler", "--running", "2,3", "--steps", "10", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(case["case"], case["running"]) for case in found["cases"]] == [
        (case.value, n) for n in (2, 3) for case in Case
    ]
    assert all(case["step"]["minimum"] > 0 for case in found["cases"])
    assert len(found["host_work"]) == 4
    if vllm_interpreter() is None:
        assert found["peer"] is None
    assert run(["bench", "scheduler", "--running", "2", "--steps", "10"]) == 0
    text = capsys.readouterr().out
    assert "µs a request" in text
    assert "the device waits for the host" in text


def test_a_peer_that_fails_is_told_when_all_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "peer.py"
    script.write_text("raise SystemExit('no vllm here')")
    monkeypatch.setattr(measure_vllm, "__defaults__", (script,))
    arguments = ["bench", "scheduler", "--running", "2,2", "--steps", "10", "--json"]
    assert run([*arguments, "--peer-python", sys.executable]) == 1
    captured = capsys.readouterr()
    assert "no vllm here" in captured.err
    found = json.loads(captured.out)
    assert found["peer"] is None
    assert [case["case"] for case in found["cases"]] == [case.value for case in Case]  # 2 counts once


@pytest.mark.parametrize("running", ["", "a", "8,0", "-1", "1000000000", "9" * 400])
def test_numbers_of_requests_are_checked(running: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "scheduler", "--running", running]) == 2
    assert "--running" in capsys.readouterr().err


def test_numbers_of_steps_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "scheduler", "--steps", "9" * 23]) == 2
    assert "allowed: an integer from 10 to 10000\n" in capsys.readouterr().err
