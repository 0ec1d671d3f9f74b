"""What cannot be served is refused at the door; what fits runs to an end."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from di_engine import InvalidParameterError, LLMEngine, RequestError, SamplingParams
from di_engine.testing import follow

Drain = Callable[[LLMEngine], dict[str, list[Any]]]
GREEDY = SamplingParams(temperature=0, max_tokens=4)
STORY = (10, 11, 12, 13)


def check_neighbour(engine: LLMEngine, drain: Drain, free_blocks: int) -> None:
    """Nothing of a refused request is left, and a request behind it is served."""
    assert not engine.has_unfinished()
    engine.add_request("neighbour", STORY[:1], GREEDY)
    outputs = drain(engine)
    assert list(outputs) == ["neighbour"]
    assert tuple(token for output in outputs["neighbour"] for token in output.token_ids) == (*STORY[1:], 1)
    assert engine.stats().scheduler.free_blocks == free_blocks


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("", "empty"),
        ([], "empty"),
        (np.empty(0, np.int64), "empty"),
        ([5, 320], "token 1: got 320, allowed: token ids 0..319"),
        ([-1], "token 0: got -1"),
        ([5, True], "token 1: got True"),
        ([5.0], "token 0: got 5.0"),
        (np.array([1.5]), "token 0"),
        (["a"], "token 0: got 'a'"),
        (None, "NoneType"),
        (7, "int"),
        (b"abc", "bytes"),
        (np.array(5), "ndarray"),
        ("ab\ud800", r"got '\\ud800' at character 2, allowed: text without lone surrogates"),
        ("\ud83d\ude00", r"'\\ud83d' at character 0"),
        ([10**5000], "token 0: got a value of type int"),
        ([[7] * 10_000], r"token 0: got \[7, 7.*\.\.\. \(30000 characters\)"),
        ([3] * 100, r"100 tokens, allowed: at most 99 \(max_model_len 100"),
    ],
)
def test_bad_prompts(make_scripted: Any, drain: Drain, prompt: Any, says: str) -> None:
    engine = make_scripted(follow(STORY), max_model_len=100, num_blocks=9)
    with pytest.raises(RequestError, match=f"prompt.*{says}") as caught:
        engine.add_request("bad", prompt, GREEDY)
    assert caught.value.field == "prompt"
    assert len(str(caught.value)) < 400
    check_neighbour(engine, drain, 8)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("logit_bias", {"logit_bias": {320: 1.0}}),
        ("stop_token_ids", {"stop_token_ids": [320]}),
        ("golden_token_ids", {"golden_token_ids": [5, 400]}),
        ("min_tokens", {"min_tokens": 98, "max_tokens": None}),
    ],
)
def test_r64_parameters_that_the_model_does_not_allow(
    make_scripted: Any, drain: Drain, field: str, values: dict[str, Any]
) -> None:
    engine = make_scripted(follow(STORY), max_model_len=100, num_blocks=9)
    with pytest.raises(RequestError) as caught:
        engine.add_request("bad", [5, 6, 7], SamplingParams(**values))
    assert caught.value.field == field
    check_neighbour(engine, drain, 8)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("top_p", 0),
        ("top_p", 1.5),
        ("stop", 5),
        ("stop", [b"x"]),
        ("stop", [""]),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {"abc": 1.0}),
        ("logit_bias", {1: math.inf}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", dict.fromkeys(range(300), 1.0)),
        ("stop_token_ids", [-1]),
        ("golden_token_ids", [-2]),
    ],
)
def test_r26_r64_parameters_that_nothing_allows(
    make_scripted: Any, drain: Drain, field: str, value: Any
) -> None:
    """They never become a SamplingParams, so a batch with a neighbour cannot hold them."""
    engine = make_scripted(follow(STORY), num_blocks=9)
    with pytest.raises(InvalidParameterError, match=field):
        engine.add_request("bad", STORY, SamplingParams(**{field: value}))
    check_neighbour(engine, drain, 8)


@pytest.mark.parametrize(("request_id", "params"), [("", GREEDY), (3, GREEDY), ("a", None), ("a", {"n": 1})])
def test_bad_ids_and_parameter_types(make_scripted: Any, request_id: Any, params: Any) -> None:
    engine = make_scripted(follow(STORY))
    with pytest.raises(RequestError) as caught:
        engine.add_request(request_id, STORY, params)
    assert caught.value.field in ("request_id", "params")
    assert not engine.has_unfinished()


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_r13_a_prompt_beyond_the_pool_is_refused_at_once(make_scripted: Any, drain: Drain, over: int) -> None:
    blocks, block_size = 13, 16
    engine = make_scripted(
        follow(STORY), num_blocks=blocks, block_size=block_size, max_model_len=4000, max_num_batched_tokens=64
    )
    prompt = [7] * ((blocks - 1) * block_size + over)
    if over < 0:
        engine.add_request("long", prompt, SamplingParams(temperature=0, max_tokens=50, ignore_eos=True))
        engine.add_request("short", STORY[:1], GREEDY)
        outputs = drain(engine)
        assert outputs["long"][-1].finish_reason == "length"
        assert outputs["long"][-1].usage.completion_tokens == 1
        assert outputs["short"][-1].finish_reason == "stop"
    else:
        with pytest.raises(RequestError, match=rf"{len(prompt)} tokens.*12 blocks of 16.*at most 191"):
            engine.add_request("long", prompt, GREEDY)
    check_neighbour(engine, drain, blocks - 1)


def test_r14_a_request_that_outgrows_the_pool_ends_once(make_scripted: Any, drain: Drain) -> None:
    engine = make_scripted(
        lambda prefix: {5: 0.0}, num_blocks=4, block_size=16, max_num_batched_tokens=16, max_model_len=4000
    )
    engine.add_request("a", [7] * 40, SamplingParams(temperature=0, max_tokens=500))
    outputs = drain(engine, 100)["a"]
    assert outputs[-1].finish_reason == "length"
    assert outputs[-1].usage.completion_tokens == 48 - 40
    scheduler = engine.stats().scheduler
    assert scheduler.preemptions <= 2
    assert (scheduler.free_blocks, scheduler.used_slots) == (3, 0)


def test_r14_two_requests_that_fit_only_one_by_one_both_end(make_scripted: Any, drain: Drain) -> None:
    engine = make_scripted(
        lambda prefix: {len(prefix): 0.0}, num_blocks=6, block_size=16, max_num_batched_tokens=16
    )
    params = SamplingParams(temperature=0, max_tokens=30)
    for name in "ab":
        engine.add_request(name, [7] * 30, params)
    outputs = drain(engine, 400)
    for name in "ab":
        assert [token for output in outputs[name] for token in output.token_ids] == list(range(30, 60))
    scheduler = engine.stats().scheduler
    assert 1 <= scheduler.preemptions <= 2
    assert (scheduler.free_blocks, scheduler.used_slots) == (5, 0)
