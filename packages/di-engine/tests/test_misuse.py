"""The engine called from where it must not be, and drafters that propose what they must not."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from di_engine import (
    LLM,
    EngineBusyError,
    ForkedProcessError,
    LLMEngine,
    RequestError,
    SamplingParams,
)
from di_engine.testing import follow
from di_spec import DraftContext, Proposal

STORY = (10, 11, 12, 13, 14, 15, 16, 17)
PARAMS = SamplingParams(temperature=0, max_tokens=4)
Drain = Callable[[LLMEngine], dict[str, list[Any]]]


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def async_scheduling(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


class ProposingDrafter:
    """Proposes what it was given a maker of."""

    def __init__(self, make: Callable[[int, int], Any]) -> None:
        self.make = make

    def propose(self, context: DraftContext, max_tokens: int) -> Any:
        return self.make(len(context.states), max_tokens)


def int32(*shape: int) -> np.ndarray:
    return np.full(shape, 5, dtype=np.int32)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda n, k: None, "proposal: got NoneType"),
        (lambda n, k: [[5] * k] * n, "proposal: got list"),
        (lambda n, k: Proposal(int32(n, k + 1)), "max_draft_tokens = 3"),
        (lambda n, k: Proposal(int32(n + 1, k)), "proposal: got tokens of shape"),
        (
            lambda n, k: Proposal(int32(1, k)) if n > 1 else Proposal(int32(2, k)),
            "proposal: got tokens of shape",
        ),
        (lambda n, k: Proposal(int32(n)), "tokens: got int32"),
        (lambda n, k: Proposal(int32(n, k).astype(np.int64)), "tokens: got int64"),
        (lambda n, k: Proposal(int32(n, k), int32(n, k)), "confidences: got int32"),
        (lambda n, k: Proposal(int32(n, k), np.ones((n, 1), np.float32)), "confidences: got shape"),
    ],
)
def test_a_proposal_that_is_none_fails_its_step_and_names_the_field(
    make_scripted: Any, drain: Drain, make: Callable[[int, int], Any], words: str
) -> None:
    engine = make_scripted(follow(STORY), drafter=ProposingDrafter(make), max_draft_tokens=3)
    for name in ("a", "b"):
        engine.add_request(name, STORY[:3], PARAMS)
    outputs = drain(engine)
    for name in ("a", "b"):
        assert outputs[name][-1].finish_reason == "error"
        assert words in outputs[name][-1].error
    assert engine.stats().scheduler.used_blocks == 0


def test_a_drafter_that_calls_the_engine_is_told_so(make_scripted: Any, drain: Drain) -> None:
    engines: list[LLMEngine] = []
    drafter = ProposingDrafter(lambda n, k: engines[0].step())
    engines.append(make_scripted(follow(STORY), drafter=drafter, max_draft_tokens=3))
    engines[0].add_request("a", STORY[:3], PARAMS)
    (output,) = drain(engines[0])["a"]
    assert (output.finish_reason, EngineBusyError.__name__ in str(output.error)) == ("error", True)
    drafter.make = lambda n, k: Proposal(int32(n, 0))
    engines[0].add_request("b", STORY[:3], PARAMS)
    assert drain(engines[0])["b"][-1].finish_reason == "length"


def test_what_is_no_options_is_refused(make_scripted: Any) -> None:
    engine = make_scripted(follow(STORY))
    with pytest.raises(RequestError, match=r"^options: got dict, allowed: RequestOptions$") as caught:
        engine.add_request("a", STORY[:3], PARAMS, options={"priority": 1})
    assert caught.value.field == "options"
    assert not engine.has_unfinished()


@pytest.mark.parametrize("ids", [None, 5, b"a", ["a", 5], [["a"]]])
def test_what_is_no_request_id_is_refused(make_scripted: Any, ids: Any) -> None:
    engine = make_scripted(follow(STORY))
    engine.add_request("a", STORY[:3], PARAMS)
    with pytest.raises(TypeError, match=r"^request_ids: got .*, allowed: a request's id, or several ids$"):
        engine.abort(ids)
    assert engine.abort(["a", "a"]) == 1


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^loaded: got int, allowed: LoadedModel, or None$"):
        LLM("nano", loaded=5)  # type: ignore[arg-type]


def _use(engine: LLMEngine, answer: Connection) -> None:
    try:
        engine.add_request("child", STORY[:3], PARAMS)
        outputs = []
        while engine.has_unfinished():
            outputs += engine.step()
        answer.send(outputs[-1].finish_reason)
    except ForkedProcessError as error:
        answer.send(str(error))
    engine.close()


@pytest.mark.timeout(60)
def test_a_forked_child_is_told_that_the_device_thread_is_not_there(
    make_scripted: Any, drain: Drain, async_scheduling: bool
) -> None:
    engine = make_scripted(follow(STORY))
    engine.add_request("a", STORY[:3], PARAMS)
    assert drain(engine)["a"][-1].finish_reason == "length"
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_use, args=(engine, there))
    child.start()
    answer = here.recv() if here.poll(30) else "no answer"
    child.join(30)
    assert child.exitcode == 0
    assert answer == (str(ForkedProcessError()) if async_scheduling else "length")
