"""Asynchronous scheduling: the host works while a step is computed, and nothing in flight is lost or kept."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from di_engine import LLMEngine, RequestError, RequestOptions, SamplingParams, StepTimeoutError
from di_engine.device import CallingThread
from di_engine.pipeline import StepPipeline
from di_engine.runner import ModelRunner, StepResult
from di_engine.testing import follow
from di_scheduler import StepPlan
from di_scheduler.cost_curve import CurveMeasurementError
from di_spec import DraftContext, Proposal, RequestOutputState, SampledTokens
from torch import Tensor

Drain = Callable[[LLMEngine], dict[str, list[Any]]]
PROMPT = (10, 11, 12)
STORY = (*PROMPT, 20, 21, 22, 23, 24, 25)
OTHER = (30, 31, 40, 41, 42, 43)
FREE = SamplingParams(temperature=0, max_tokens=32)
WAIT = 20.0


@pytest.fixture
def async_scheduling() -> bool:
    return True


def kept(outputs: list[Any]) -> tuple[int, ...]:
    return tuple(token for output in outputs for token in output.token_ids)


def device_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("di-device")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = len(device_threads())
    yield
    deadline = time.monotonic() + WAIT
    while len(device_threads()) > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(device_threads()) == before


class Gate:
    """Holds up the rows of a script where it is told to, and says when it does."""

    def __init__(self, *texts: tuple[int, ...]) -> None:
        self.script = follow(*texts)
        self.hold_at: tuple[int, ...] | None = None
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, prefix: tuple[int, ...]) -> Any:
        if prefix == self.hold_at:
            self.reached.set()
            assert self.opened.wait(WAIT)
        return self.script(prefix)


def test_step_returns_while_the_next_one_is_computed(make_scripted: Any, drain: Drain) -> None:
    gate = Gate(STORY)
    gate.hold_at = STORY[:4]
    engine = make_scripted(gate)
    engine.add_request("a", PROMPT, FREE)
    (first,) = engine.step()
    assert first.token_ids == STORY[3:4]
    assert gate.reached.wait(WAIT)
    engine.add_request("b", PROMPT, FREE)  # requests come in meanwhile
    gate.opened.set()
    outputs = drain(engine)
    assert kept([first, *outputs["a"]]) == kept(outputs["b"]) == (*STORY[3:], 1)
    counters = engine.stats().counters
    assert counters.overlapped_steps > 4
    assert engine.stats().scheduler.used_blocks == 0


def test_outputs_are_those_of_synchronous_scheduling_step_by_step(make_scripted: Any, drain: Drain) -> None:
    outputs = []
    for asynchronous in (False, True):
        engine = make_scripted(
            lambda prefix: {1: -1.0, **dict.fromkeys(range(100, 140), 0.0)},
            async_scheduling=asynchronous,
            max_num_seqs=4,
        )
        for index in range(9):
            params = SamplingParams(seed=index, max_tokens=12, logprobs=1, prompt_logprobs=1, n=1 + index % 2)
            engine.add_request(str(index), [7 + index] * (1 + index), params)
        outputs.append(drain(engine))
        assert engine.stats().scheduler.used_slots == 0
    assert outputs[0] == outputs[1]


def test_sampling_waits_for_the_commit_of_the_step_before(
    make_scripted: Any, drain: Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A penalty looks at the tokens before, however long the host takes to commit them."""
    commit = RequestOutputState.commit

    def slowly(*args: Any) -> Any:
        time.sleep(0.02)
        return commit(*args)

    monkeypatch.setattr(RequestOutputState, "commit", slowly)
    engine = make_scripted(lambda prefix: {50 + i: -0.1 * i for i in range(8)})
    engine.add_request("a", PROMPT, SamplingParams(temperature=0, max_tokens=8, frequency_penalty=1.0))
    assert kept(drain(engine)["a"]) == tuple(range(50, 58))


def test_an_abort_in_flight_drops_what_was_computed(make_scripted: Any, drain: Drain) -> None:
    gate = Gate(STORY, OTHER)
    gate.hold_at = STORY[:5]
    engine = make_scripted(gate)
    engine.add_request("a", PROMPT, FREE)
    engine.add_request("b", OTHER[:2], FREE)
    before = engine.step() + engine.step()
    assert gate.reached.wait(WAIT)
    assert engine.abort("a") == 1
    engine.add_request("a", OTHER[:2], FREE)  # the id is free at once
    gate.opened.set()
    outputs = drain(engine)
    assert kept([output for output in before if output.request_id == "a"]) == STORY[3:5]
    assert [output.finish_reason for output in outputs["a"]] == ["abort", *[None] * 4, "stop"]
    assert kept(outputs["a"]) == (*OTHER[2:], 1)
    assert kept([o for o in before if o.request_id == "b"] + outputs["b"]) == (*OTHER[2:], 1)
    stats = engine.stats().scheduler
    assert (stats.used_blocks, stats.used_slots, stats.running, stats.waiting) == (0, 0, 0, 0)


@pytest.mark.parametrize("blocks", [5, 6, 7])
def test_r55_what_is_preempted_in_flight_loses_and_repeats_nothing(
    make_scripted: Any, drain: Drain, blocks: int
) -> None:
    tight: dict[str, Any] = {"num_blocks": blocks, "block_size": 4, "max_num_batched_tokens": 8}
    engine = make_scripted(lambda prefix: {50 + len(prefix): 0.0}, **tight)
    params = SamplingParams(temperature=0, max_tokens=9, logprobs=0, prompt_logprobs=0)
    for index in range(5):
        engine.add_request(str(index), [7] * (2 + index), params)
    outputs = drain(engine)
    for index in range(5):
        first = 50 + 2 + index
        assert kept(outputs[str(index)]) == tuple(range(first, first + 9))
        assert [output.prompt_logprobs is None for output in outputs[str(index)]].count(False) == 1
    stats = engine.stats().scheduler
    assert stats.preemptions_in_flight > 0
    assert (stats.used_blocks, stats.used_slots) == (0, 0)


class FailingRunner(ModelRunner):
    """Fails once, in the first decode of the prompt that begins with token 10."""

    failed = False

    def forward(self, plan: StepPlan, sequences: Any) -> Tensor:
        for sequence, start in zip(sequences, plan.q_start.tolist(), strict=True):
            if sequence.request.prompt_ids[0] == 10 and start == 3 and not self.failed:
                self.failed = True
                raise MemoryError("no memory")
        return super().forward(plan, sequences)


def test_a_failure_ends_its_step_and_not_the_one_in_flight(make_scripted: Any, drain: Drain) -> None:
    """The other request comes in with the step that is planned while the failing one is computed."""
    engine = make_scripted(follow(STORY, OTHER), runner=FailingRunner)
    engine.add_request("a", PROMPT, FREE)
    outputs = {"a": engine.step()}
    engine.add_request("b", OTHER[:2], FREE)
    for name, more in drain(engine).items():
        outputs.setdefault(name, []).extend(more)
    assert kept(outputs["a"]) == STORY[3:4]
    assert outputs["a"][-1].finish_reason == "error"
    assert "MemoryError: no memory" in outputs["a"][-1].error
    assert kept(outputs["b"]) == (*OTHER[2:], 1)
    stats = engine.stats()
    assert (stats.counters.failed_steps, stats.scheduler.used_blocks, stats.scheduler.used_slots) == (1, 0, 0)


class FailingDrafter:
    def propose(self, context: DraftContext, max_tokens: int) -> Proposal:
        raise RuntimeError(f"no drafts for {len(context.states)}")


def test_a_drafter_that_fails_fails_its_step(make_scripted: Any, drain: Drain) -> None:
    engine = make_scripted(follow(STORY), drafter=FailingDrafter())
    engine.add_request("a", PROMPT, FREE)
    (output,) = drain(engine)["a"]
    assert output.finish_reason == "error"
    assert "no drafts for 1" in output.error


def test_close_in_flight_waits_for_the_step_and_ends_the_thread(make_scripted: Any) -> None:
    gate = Gate(STORY)
    gate.hold_at = STORY[:4]
    engine = make_scripted(gate)
    engine.add_request("a", PROMPT, FREE)
    engine.step()
    assert gate.reached.wait(WAIT)
    assert device_threads()
    threading.Timer(0.05, gate.opened.set).start()
    engine.close()
    assert gate.opened.is_set()


def test_close_says_what_it_waited_for(make_scripted: Any) -> None:
    gate = Gate(STORY)
    gate.hold_at = STORY[:4]
    engine = make_scripted(gate, step_timeout=0.1)
    engine.add_request("a", PROMPT, FREE)
    engine.step()
    assert gate.reached.wait(WAIT)
    with pytest.raises(StepTimeoutError, match=r"waited 0\.1 s for the device thread"):
        engine.close()
    gate.opened.set()
    engine.close()


def test_a_step_that_takes_too_long_ends_all_requests(make_scripted: Any, drain: Drain) -> None:
    gate = Gate(STORY, OTHER)
    gate.hold_at = STORY[:4]
    engine = make_scripted(gate, step_timeout=0.3, max_num_seqs=1)
    engine.add_request("a", PROMPT, FREE)
    engine.add_request("waiting", OTHER[:2], FREE)
    assert kept(engine.step()) == STORY[3:4]
    outputs = engine.step()
    assert [(output.request_id, output.finish_reason) for output in outputs] == [
        ("a", "error"),
        ("waiting", "error"),
    ]
    assert all("waited 0.3 s for a step" in output.error for output in outputs)
    assert not engine.has_unfinished()
    gate.opened.set()
    engine.add_request("a", PROMPT, FREE)  # what was late is behind it
    assert kept(drain(engine)["a"]) == (*STORY[3:], 1)
    assert engine.stats().scheduler.used_blocks == 0


@pytest.mark.parametrize("asynchronous", [False, True])
def test_deadlines(make_scripted: Any, drain: Drain, asynchronous: bool) -> None:
    engine = make_scripted(
        lambda prefix: {5: 0.0}, async_scheduling=asynchronous, max_model_len=4000, num_blocks=40
    )
    now = time.monotonic()
    endless = SamplingParams(temperature=0, max_tokens=3000)
    engine.add_request("late", PROMPT, endless, options=RequestOptions(deadline=now + 0.2))
    engine.add_request("over", PROMPT, endless, options=RequestOptions(deadline=now - 1.0))
    engine.add_request("free", PROMPT, SamplingParams(temperature=0, max_tokens=3))
    outputs = drain(engine, 4000)
    assert [output.finish_reason for output in outputs["over"]] == ["deadline"]
    assert outputs["late"][-1].finish_reason == "deadline"
    assert kept(outputs["late"]) == (5,) * len(kept(outputs["late"]))
    assert outputs["free"][-1].finish_reason == "length"
    assert engine.stats().scheduler.used_blocks == 0


@pytest.mark.parametrize("asynchronous", [False, True])
def test_priorities_go_first(make_scripted: Any, drain: Drain, asynchronous: bool) -> None:
    engine = make_scripted(lambda prefix: {5: 0.0}, max_num_seqs=1, async_scheduling=asynchronous)
    params = SamplingParams(temperature=0, max_tokens=2)
    for name, priority in (("last", 1), ("second", 0), ("first", -3)):
        engine.add_request(name, PROMPT, params, options=RequestOptions(priority=priority))
    assert list(drain(engine)) == ["first", "second", "last"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("priority", 1.5), ("user", -1), ("weight", 0.0), ("weight", float("nan")), ("deadline", float("nan"))],
)
def test_options_that_nothing_allows(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"options: {field}"):
        RequestOptions(**{field: value})


def run_python(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        timeout=120,
        text=True,
        check=False,
        cwd=directory,
    )


def test_an_engine_that_is_never_closed_does_not_keep_the_process(tmp_path: Path) -> None:
    code = """
        from di_engine import EngineConfig, LLMEngine, SamplingParams
        from di_engine.testing import follow, scripted_model

        config = EngineConfig(model="scripted", max_num_seqs=2, async_scheduling=True)
        engine = LLMEngine(config, loaded=scripted_model(config, follow(range(10, 40))))
        engine.add_request("a", [10, 11], SamplingParams(temperature=0, max_tokens=20))
        print(engine.step()[0].token_ids)
    """
    ended = run_python(code, tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "(12,)\n", "")


def test_a_kernel_that_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    """Neither when ``close`` has given it up nor when nobody closed."""
    code = """
        import time
        from functools import partial

        from di_engine import StepTimeoutError, device

        device.EXIT_SECONDS = 0.2
        closed, left = device.DeviceThread(), device.DeviceThread()
        for each in (closed, left):
            each.submit(partial(time.sleep, 1000))
        try:
            closed.close(0.1)
        except StepTimeoutError as error:
            print(error)
    """
    ended = run_python(code, tmp_path)
    said = "waited 0.1 s for the device thread to end\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, said, "")


def test_a_start_that_fails_leaves_no_thread(make_scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise CurveMeasurementError("the clock stands still")

    monkeypatch.setattr("di_engine.engine.measured_draft_budget", fail)
    before = device_threads()
    with pytest.raises(CurveMeasurementError):
        make_scripted(follow(STORY), drafter=FailingDrafter(), measure_step_cost=True)
    assert device_threads() == before


@dataclass
class Copying:
    """A plan as far as the pipeline looks at it: copies, and rows when there are sequences."""

    seq_ids: Any
    then: Copying | None = None

    @property
    def num_seqs(self) -> int:
        return len(self.seq_ids)

    num_rows = num_seqs

    @property
    def sampling(self) -> Any:
        return np.arange(self.num_seqs, dtype=np.int32)

    def resolve(self, *offer: Any) -> Any:
        return self.then


@dataclass
class RecordingRunner:
    """Remembers what it was asked for; ``error`` is what its copies raise."""

    error: Exception | None = None
    calls: list[Any] = field(default_factory=list)

    def copy(self, plan: Any) -> None:
        self.calls.append(("copy", plan.seq_ids.tolist()))
        if self.error is not None:
            raise self.error

    def forward(self, plan: Any, sequences: Any) -> Tensor:
        self.calls.append(("forward", list(sequences)))
        return torch.zeros(plan.num_rows, 1)

    def sample(self, plan: Any, sequences: Any, hidden: Tensor) -> StepResult:
        return StepResult(tuple(SampledTokens((sequence,), (None,)) for sequence in sequences))


def test_copies_are_made_for_a_step_whose_rows_have_all_gone() -> None:
    runner: Any = RecordingRunner()
    pipeline = StepPipeline(runner, 1, WAIT)
    pipeline.submit(Copying(np.array([4])), (40,))  # type: ignore[arg-type]
    pipeline.submit(Copying(np.array([4]), then=Copying(np.array([], np.int64))), (40,))  # type: ignore[arg-type]
    pipeline.release()
    step = pipeline.collect()
    assert runner.calls == [("copy", [4]), ("forward", [40]), ("copy", [])]
    assert step is not None
    assert (list(step.sequences), len(step.offer.tokens), len(step.offer.counts)) == ([], 0, 0)


def test_copies_that_fail_fail_their_step() -> None:
    runner: Any = RecordingRunner(error=MemoryError("no memory"))
    pipeline = StepPipeline(runner, 1, WAIT)
    pipeline.submit(Copying(np.array([4, 5])), (40, 50))  # type: ignore[arg-type]
    step = pipeline.collect()
    assert step is not None
    assert step.result is runner.error
    assert (step.offer.counts.tolist(), step.offer.failed.tolist()) == ([0, 0], [True, True])


def test_sequences_that_go_on_stay_with_their_rows() -> None:
    runner: Any = RecordingRunner()
    pipeline = StepPipeline(runner, 1, WAIT)
    pipeline.submit(Copying(np.array([9])), (90,))  # type: ignore[arg-type]
    plan = Copying(np.array([7, 5, 9, 2]), then=Copying(np.array([7, 9])))
    pipeline.submit(plan, (70, 50, 90, 20))  # type: ignore[arg-type]
    pipeline.release()
    step = pipeline.collect()
    assert step is not None
    assert list(step.sequences) == [70, 90]
    assert step.offer.tokens.tolist() == [70, 90]


class LateFuture(Future[Any]):
    """One whose task ends in the moment in which a wait for it is given up."""

    def result(self, timeout: float | None = None) -> Any:
        if timeout:
            raise TimeoutError
        return super().result(timeout)


class LateDevice(CallingThread):
    def submit(self, task: Callable[[], Any]) -> Future[Any]:
        future = LateFuture()
        future.set_result(task())
        return future


def test_a_step_that_ends_with_the_wait_for_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("di_engine.pipeline.CallingThread", LateDevice)
    runner: Any = RecordingRunner()
    pipeline = StepPipeline(runner, 1, WAIT)
    pipeline.submit(Copying(np.array([4])), (40,))  # type: ignore[arg-type]
    step = pipeline.collect()
    assert step is not None
    assert step.offer.tokens.tolist() == [40]


def test_an_offer_is_what_the_scheduler_takes() -> None:
    sampled = (
        SampledTokens((3, 4), (None, None)),
        SampledTokens((), (), "bad"),
        SampledTokens((5,), (None,)),
    )
    offer = StepResult(sampled, Proposal(np.full((3, 2), 8, np.int32))).offer()
    arrays = (offer.tokens, offer.counts, offer.failed)
    assert [array.dtype for array in arrays] == [np.int32, np.int32, np.bool_]
    assert [array.tolist() for array in arrays] == [[3, 4, 5], [2, 0, 1], [False, True, False]]
    assert offer.drafts is not None
    assert (offer.drafts.shape, offer.confidences) == ((3, 2), None)
    assert StepResult(()).offer().tokens.dtype == np.int32
