"""The life of a request: added once, ended once, whatever ends it."""

from __future__ import annotations

import gc
import math
import signal
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pytest
from di_engine import EngineClosedError, LLMEngine, RequestError, SamplingParams
from di_engine.runner import ModelRunner
from di_engine.testing import follow
from di_scheduler import StepPlan
from torch import Tensor

Drain = Callable[[LLMEngine], dict[str, list[Any]]]
PROMPT = (10, 11, 12)
STORY = (*PROMPT, 20, 21, 22, 23, 24, 25)
FREE = SamplingParams(temperature=0, max_tokens=32)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def async_scheduling(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def kept(outputs: Sequence[Any]) -> tuple[int, ...]:
    return tuple(token for output in outputs for token in output.token_ids)


def test_deltas_add_up_and_the_last_one_says_why(make_scripted: Any, drain: Drain) -> None:
    engine = make_scripted(follow(STORY))
    engine.add_request("a", PROMPT, FREE)
    outputs = drain(engine)["a"]
    assert kept(outputs) == (*STORY[3:], 1)
    assert [output.finished for output in outputs] == [False] * 6 + [True]
    assert [output.finish_reason for output in outputs] == [None] * 6 + ["stop"]
    assert outputs[-1].usage.prompt_tokens == 3
    assert outputs[-1].usage.completion_tokens == 7
    assert "".join(output.text for output in outputs) == engine.tokenizer.decode(STORY[3:])
    assert asdict(outputs[-1])["usage"] == {"prompt_tokens": 3, "completion_tokens": 7}
    assert len(set(outputs)) == len(outputs)


def test_max_tokens_none_goes_on_to_the_context(make_scripted: Any, drain: Drain) -> None:
    engine = make_scripted(lambda prefix: {50: 0.0}, max_model_len=20)
    engine.add_request("a", PROMPT, SamplingParams(temperature=0, max_tokens=None))
    outputs = drain(engine)["a"]
    assert len(kept(outputs)) == 17
    assert outputs[-1].finish_reason == "length"


def test_text_prompts_begin_with_bos_once(make_scripted: Any) -> None:
    seen: list[tuple[int, ...]] = []
    engine = make_scripted(lambda prefix: seen.append(prefix) or {1: 0.0})
    bos = engine.tokenizer.token(engine.tokenizer.bos_token_id)
    for name, text in (("a", "Hello"), ("b", f"{bos}Hello")):
        engine.add_request(name, text, FREE)
    engine.step()
    hello = (0, *engine.tokenizer.encode("Hello"))
    assert [prefix for prefix in seen if len(prefix) == len(hello)] == [hello, hello]


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_abort_gives_one_last_output_and_everything_back(
    make_scripted: Any, drain: Drain, steps: int
) -> None:
    engine = make_scripted(follow(STORY))
    free = engine.stats().scheduler.free_blocks
    engine.add_request("a", PROMPT, FREE)
    engine.add_request("b", PROMPT, FREE)
    before = [output for _ in range(steps) for output in engine.step() if output.request_id == "a"]
    assert engine.abort("a") == 1
    assert engine.abort(["a", "nobody"]) == 0
    outputs = drain(engine)
    assert [output.finish_reason for output in outputs["a"]] == ["abort"]
    assert outputs["a"][0].finished
    assert len(before) == steps
    assert outputs["b"][-1].finish_reason == "stop"
    stats = engine.stats()
    assert (stats.scheduler.free_blocks, stats.scheduler.used_slots) == (free, 0)
    assert (stats.counters.requests_aborted, stats.counters.requests_finished) == (1, 2)


def test_r25_a_recycled_id_does_not_meet_its_past(make_scripted: Any, drain: Drain) -> None:
    engine = make_scripted(follow(STORY, (9, 30, 31)))
    for _ in range(5):
        engine.add_request("id", (9,), FREE)
        engine.step()
        engine.abort("id")
        engine.add_request("id", PROMPT, FREE)
        outputs = drain(engine)["id"]
        assert [output.finish_reason for output in outputs if output.finished] == ["abort", "stop"]
        assert kept(outputs[1:]) == (*STORY[3:], 1)
        scheduler = engine.stats().scheduler
        assert (scheduler.waiting, scheduler.running, scheduler.used_slots) == (0, 0, 0)


def test_r65_a_row_that_is_not_finite_ends_its_own_request(make_scripted: Any, drain: Drain) -> None:
    def script(prefix: tuple[int, ...]) -> dict[int, float]:
        if prefix[0] == 9 and len(prefix) == 6:
            return {7: math.nan}
        return {40 + len(prefix) % 5: 0.0, 50: -0.5}

    params = SamplingParams(max_tokens=12, seed=3, logprobs=2)
    alone = make_scripted(script)
    alone.add_request("b", PROMPT, params)
    expected = drain(alone)["b"]

    engine = make_scripted(script)
    engine.add_request("a", (9, 9), params)
    engine.add_request("b", PROMPT, params)
    outputs = drain(engine)
    assert outputs["b"] == expected
    assert len(kept(outputs["a"])) == 4
    last = outputs["a"][-1]
    assert (last.finish_reason, last.finished, last.token_ids) == ("error", True, ())
    assert "not finite" in last.error
    counters = engine.stats().counters
    assert (counters.nonfinite_sequences, counters.failed_sequences) == (1, 1)
    assert engine.stats().scheduler.used_blocks == 0


def test_a_prompt_row_that_is_not_finite_ends_its_request(make_scripted: Any, drain: Drain) -> None:
    engine = make_scripted(lambda prefix: {7: math.nan if prefix == (9, 9) else 0.0}, max_chunk_tokens=2)
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=1)
    engine.add_request("a", (9, 9, 9, 9, 9), params)
    engine.add_request("b", PROMPT, params)
    outputs = drain(engine)
    assert [(output.finish_reason, output.prompt_logprobs) for output in outputs["a"]] == [("error", None)]
    assert kept(outputs["b"]) == (7, 7)
    assert engine.stats().counters.nonfinite_sequences == 1


def test_a_request_that_leaves_nothing_to_draw_fails_alone(make_scripted: Any, drain: Drain) -> None:
    engine = make_scripted(
        lambda prefix: dict.fromkeys(range(320), -math.inf) if prefix[0] == 9 else {7: 0.0}
    )
    engine.add_request("a", (9,), FREE)
    engine.add_request("b", PROMPT, SamplingParams(temperature=0, max_tokens=3))
    outputs = drain(engine)
    assert outputs["a"][-1].finish_reason == "error"
    assert kept(outputs["b"]) == (7, 7, 7)


class FailingRunner(ModelRunner):
    """Fails in the steps that hold a sequence whose prompt begins with token 9."""

    def forward(self, plan: StepPlan, sequences: Any) -> Tensor:
        if any(sequence.request.prompt_ids[0] == 9 for sequence in sequences):
            raise MemoryError("no memory for 9")
        return super().forward(plan, sequences)


def test_a_failed_step_ends_the_requests_it_held(make_scripted: Any, drain: Drain) -> None:
    engine = make_scripted(follow(STORY), runner=FailingRunner)
    engine.add_request("a", (9,), FREE)
    engine.add_request("b", PROMPT, FREE)
    outputs = drain(engine)
    for name in ("a", "b"):
        assert [output.finish_reason for output in outputs[name]] == ["error"]
        assert "no memory for 9" in outputs[name][0].error
    engine.add_request("b", PROMPT, FREE)
    assert kept(drain(engine)["b"]) == (*STORY[3:], 1)
    stats = engine.stats()
    assert (stats.counters.failed_steps, stats.scheduler.used_blocks, stats.scheduler.used_slots) == (1, 0, 0)


class InterruptedRunner(ModelRunner):
    """Ctrl-C arrives while the first step that holds more than two sequences is computed."""

    interrupted = False

    def forward(self, plan: StepPlan, sequences: Any) -> Tensor:
        if plan.num_seqs > 2 and not self.interrupted:
            self.interrupted = True
            signal.raise_signal(signal.SIGINT)
        return super().forward(plan, sequences)


def test_an_interruption_aborts_everything_and_the_engine_goes_on(make_scripted: Any, drain: Drain) -> None:
    engine = make_scripted(follow(STORY), runner=InterruptedRunner)
    for name in "abc":
        engine.add_request(name, PROMPT, FREE)
    gc.disable()  # hypothesis has a callback in every collection, and an interruption inside it is lost
    try:
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    finally:
        gc.enable()
    outputs = drain(engine)
    assert {name: [output.finish_reason for output in of] for name, of in outputs.items()} == {
        name: ["abort"] for name in "abc"
    }
    for name in "abc":
        engine.add_request(name, PROMPT, FREE)
    assert all(kept(of) == (*STORY[3:], 1) for of in drain(engine).values())
    assert engine.stats().scheduler.used_slots == 0


def test_close_releases_everything_and_refuses_further_use(make_scripted: Any) -> None:
    caches: list[weakref.ref[Any]] = []

    class Watched(ModelRunner):
        def __init__(self, loaded: Any, drafter: Any) -> None:
            super().__init__(loaded, drafter)
            caches.append(weakref.ref(self.cache))

    engine: LLMEngine = make_scripted(follow(STORY), runner=Watched)
    engine.add_request("a", PROMPT, FREE)
    engine.step()
    engine.close()
    engine.close()
    gc.collect()
    assert caches[0]() is None
    for use in (
        engine.step,
        engine.stats,
        engine.has_unfinished,
        engine.abort_all,
        lambda: engine.abort("a"),
        lambda: engine.add_request("b", PROMPT, FREE),
        lambda: engine.tokenizer,
        engine.__enter__,
    ):
        with pytest.raises(EngineClosedError, match="closed"):
            use()


def test_a_context_manager_closes(make_scripted: Any) -> None:
    with make_scripted(follow(STORY)) as engine:
        engine.add_request("a", PROMPT, FREE)
    with pytest.raises(EngineClosedError):
        engine.step()


def test_the_engine_seed_repeats_requests_without_one(make_scripted: Any, drain: Drain) -> None:
    def tokens(seed: int) -> list[tuple[int, ...]]:
        engine = make_scripted(lambda prefix: dict.fromkeys(range(100, 200), 0.0), seed=seed)
        for name in "ab":
            engine.add_request(name, PROMPT, SamplingParams(max_tokens=8))
        return [kept(of) for of in drain(engine).values()]

    first = tokens(1)
    assert first == tokens(1)
    assert first != tokens(2)
    assert first[0] != first[1]


def test_a_duplicate_id_is_refused_and_the_first_goes_on(make_scripted: Any, drain: Drain) -> None:
    engine = make_scripted(follow(STORY))
    engine.add_request("a", PROMPT, FREE)
    with pytest.raises(RequestError, match="'a' is in use") as caught:
        engine.add_request("a", (9,), FREE)
    assert caught.value.field == "request_id"
    assert kept(drain(engine)["a"]) == (*STORY[3:], 1)
