"""Offline generation: one result per prompt, in order, whatever happens to it."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from di_engine import LLM, EngineClosedError, EngineConfig, EngineConfigError, SamplingParams
from di_engine.testing import NextLogits, scripted_model

GREEDY = SamplingParams(temperature=0, max_tokens=4)


@pytest.fixture
def make_llm() -> Iterator[Any]:
    """``make_llm(next_logits, **settings)``: an LLM of a scripted model."""
    made: list[LLM] = []

    def make(next_logits: NextLogits, **settings: Any) -> LLM:
        settings = {"max_num_seqs": 4, **settings}
        config = EngineConfig.from_dict({"model": "scripted", **settings})
        made.append(LLM("scripted", loaded=scripted_model(config, next_logits), **settings))
        return made[-1]

    yield make
    for llm in made:
        llm.close()


def count_up(prefix: tuple[int, ...]) -> dict[int, float]:
    """Each token is the one before it plus one; token 60 is followed by the end."""
    return {1 if prefix[-1] == 60 else prefix[-1] + 1: 0.0}


def test_results_come_in_order_of_the_prompts(make_llm: Any) -> None:
    llm = make_llm(count_up)
    prompts = [[10 + 5 * i] for i in range(10)]
    params = [SamplingParams(temperature=0, max_tokens=10 - i) for i in range(10)]
    results = llm.generate(prompts, params, use_tqdm=False)
    assert [result.prompt for result in results] == prompts
    for i, result in enumerate(results):
        assert result.token_ids == tuple(range(11 + 5 * i, 21 + 4 * i))
        assert result.finish_reason == "length"
        assert result.text == llm.get_tokenizer().decode(result.token_ids)
        assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (1, 10 - i)


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("A", 1),
        ([5, 6], 1),
        ((5, 6), 1),
        (np.array([5, 6], np.int32), 1),
        (["A", [5, 6], np.array([5])], 3),
        (np.array([[5, 6], [7, 8]]), 2),
        (np.array(["A", "B"]), 2),
        ([], 0),
    ],
)
def test_one_prompt_or_many(make_llm: Any, prompts: Any, expected: int) -> None:
    results = make_llm(count_up).generate(prompts, GREEDY, use_tqdm=False)
    assert len(results) == expected
    assert all(result.error is None for result in results)


def test_a_bad_prompt_has_a_result_that_says_why(make_llm: Any) -> None:
    llm = make_llm(count_up, max_model_len=50)
    prompts = [[10], [], [999], "", [7] * 60, None, [20]]
    results = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [result.finish_reason for result in results] == ["length", *["error"] * 5, "length"]
    assert results[0].token_ids == (11, 12, 13, 14)
    assert results[-1].token_ids == (21, 22, 23, 24)
    for result, says in zip(results[1:-1], ["empty", "999", "empty", "at most 49", "NoneType"], strict=True):
        assert says in result.error
        assert (result.text, result.token_ids, result.usage.total_tokens) == ("", (), 0)


@pytest.mark.parametrize("prompts", [[{"prompt": "x"}], [None], [{"prompt": "x"}, "A"]])
def test_what_is_no_prompt_hears_what_one_is(make_llm: Any, prompts: Any) -> None:
    results = make_llm(count_up).generate(prompts, GREEDY, use_tqdm=False)
    assert len(results) == len(prompts)
    kind = type(prompts[0]).__name__
    assert results[0].error == f"prompt: got {kind}, allowed: text, or a sequence of token ids"
    with pytest.raises(
        TypeError, match=r"prompts: got dict, allowed: a prompt \(text, or a sequence of token"
    ):
        make_llm(count_up).generate({"prompt": "x"}, GREEDY)


def test_bad_parameters_of_one_prompt_do_not_touch_the_others(make_llm: Any) -> None:
    bad = SamplingParams(logit_bias={5000: 1.0}, n=2)
    results = make_llm(count_up).generate([[10], [20]], [bad, GREEDY], use_tqdm=False)
    assert "logit_bias" in results[0].error
    assert [choice.finish_reason for choice in results[0].choices] == ["error", "error"]
    assert results[1].token_ids == (21, 22, 23, 24)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_as_many_parameters_as_prompts_or_nothing_starts(make_llm: Any, count: int) -> None:
    llm = make_llm(count_up)
    with pytest.raises(ValueError, match=f"sampling_params: got {count}.*2 prompts"):
        llm.generate([[10], [20]], [GREEDY] * count, use_tqdm=False)
    assert llm.engine.stats().counters.requests_added == 0
    with pytest.raises(TypeError, match=r"sampling_params\[1\]"):
        llm.generate([[10], [20]], [GREEDY, {"n": 1}], use_tqdm=False)
    with pytest.raises(TypeError, match="prompts"):
        llm.generate(5)
    with pytest.raises(TypeError, match="prompts: got ndarray"):
        llm.generate(np.array(5))
    with pytest.raises(TypeError, match="sampling_params: got int"):
        llm.generate([[10]], 5)


def test_a_prompt_that_fails_on_the_way_keeps_what_it_had(make_llm: Any) -> None:
    llm = make_llm(lambda prefix: {9: math.nan} if prefix[-1] == 12 else count_up(prefix))
    failed, fine = llm.generate([[10], [20]], GREEDY, use_tqdm=False)
    assert (failed.token_ids, failed.finish_reason) == ((11, 12), "error")
    assert "not finite" in failed.error
    assert fine.token_ids == (21, 22, 23, 24)


def test_choices_and_logprobs_are_collected(make_llm: Any) -> None:
    llm = make_llm(lambda prefix: {1: 0.0, 100: 0.0, 101: 0.0})
    params = SamplingParams(n=3, seed=5, logprobs=1, prompt_logprobs=0, max_tokens=20)
    (result,) = llm.generate([[7, 8, 9]], params, use_tqdm=False)
    assert [choice.index for choice in result.choices] == [0, 1, 2]
    assert len(result.prompt_logprobs) == 2
    for choice in result.choices:
        assert [entry.token_id for entry in choice.logprobs] == list(choice.token_ids)
    assert result.usage.completion_tokens == sum(len(choice.token_ids) for choice in result.choices)


def test_collecting_logprobs_costs_each_one_once(make_llm: Any) -> None:
    """The list of a choice grows in place, however many steps add to it."""
    seen = []
    llm = make_llm(lambda prefix: {7: 0.0})
    step = llm.engine.step

    def watched() -> Any:
        (pending,) = llm._running.values()
        seen.append(pending._choices[0].logprobs)
        return step()

    llm.engine.step = watched
    params = SamplingParams(logprobs=0, max_tokens=6)
    (result,) = llm.generate([[7]], params, use_tqdm=False)
    assert len(result.logprobs) == 6
    assert len({id(logprobs) for logprobs in seen if logprobs is not None}) == 1


def test_the_progress_bar_counts_prompts(make_llm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    llm = make_llm(count_up)
    llm.generate([[10], [], [20]], GREEDY)
    assert "3/3" in capsys.readouterr().err
    llm.generate([[10]], GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_ctrl_c_aborts_everything_and_the_next_call_works(make_llm: Any) -> None:
    interrupt = [False]

    def script(prefix: tuple[int, ...]) -> dict[int, float]:
        if interrupt[0] and len(prefix) == 4:
            interrupt[0] = False
            signal.raise_signal(signal.SIGINT)
        return count_up(prefix)

    llm = make_llm(script)
    prompts = [[10 + i] for i in range(8)]
    expected = [result.token_ids for result in llm.generate(prompts, GREEDY, use_tqdm=False)]
    free = llm.engine.stats().scheduler.free_blocks
    interrupt[0] = True
    with pytest.raises(KeyboardInterrupt):
        llm.generate(prompts, GREEDY, use_tqdm=False)
    scheduler = llm.engine.stats().scheduler
    assert (scheduler.free_blocks, scheduler.used_slots, scheduler.waiting) == (free, 0, 0)
    assert not llm.engine.has_unfinished()
    assert [result.token_ids for result in llm.generate(prompts, GREEDY, use_tqdm=False)] == expected


def test_threads_wait_for_each_other(make_llm: Any) -> None:
    llm = make_llm(count_up)
    results: dict[int, list[tuple[int, ...]]] = {}

    def work(first: int) -> None:
        prompts = [[first + i] for i in range(6)]
        results[first] = [result.token_ids for result in llm.generate(prompts, GREEDY, use_tqdm=False)]

    threads = [threading.Thread(target=work, args=(first,)) for first in (10, 20, 30, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {
        first: [tuple(range(first + i + 1, first + i + 5)) for i in range(6)] for first in (10, 20, 30, 40)
    }


@pytest.mark.parametrize("taken", ["stepped", "aborted", "closed"])
def test_generate_never_waits_for_what_somebody_else_took(make_llm: Any, taken: str) -> None:
    def take(llm: LLM) -> None:
        if taken == "closed":
            llm.close()
            return
        if taken == "aborted":
            llm.engine.abort_all()
        while llm.engine.has_unfinished():
            llm.engine.step()

    def script(prefix: tuple[int, ...]) -> dict[int, float]:
        if len(prefix) == 3 and armed.pop("once", False):
            # Another thread would do this between two steps of generate.
            step, llm.engine.step = (
                llm.engine.step,
                lambda: (setattr(llm.engine, "step", step), take(llm), [])[2],
            )
        return count_up(prefix)

    armed = {"once": True}
    llm = make_llm(script)
    with pytest.raises(EngineClosedError if taken == "closed" else RuntimeError):
        llm.generate([[10], [20]], GREEDY, use_tqdm=False)
    if taken != "closed":
        assert llm.generate([[10]], GREEDY, use_tqdm=False)[0].token_ids == (11, 12, 13, 14)


def test_no_progress_without_a_standard_error(make_llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    assert make_llm(count_up).generate([[10]], GREEDY)[0].finish_reason == "length"


def test_close_and_context_manager(make_llm: Any) -> None:
    with make_llm(count_up) as llm:
        llm.generate([10], GREEDY, use_tqdm=False)
    llm.close()
    with pytest.raises(EngineClosedError):
        llm.generate([10], GREEDY, use_tqdm=False)
    with pytest.raises(EngineClosedError):
        llm.get_tokenizer()


def test_settings_are_those_of_the_engine(checkpoint: Path) -> None:
    with pytest.raises(EngineConfigError, match="max_seqs"):
        LLM(checkpoint, max_seqs=3)
    with LLM(checkpoint, max_num_seqs=2, numerics="float32", max_model_len=64) as llm:
        assert llm.engine.capacity.max_model_len == 64
        results = llm.generate(["Hello world", [1, 2, 3]], GREEDY, use_tqdm=False)
        assert [len(result.token_ids) for result in results] == [4, 4]
        assert results[0].text == llm.get_tokenizer().decode(results[0].token_ids)
