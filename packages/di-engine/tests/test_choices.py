"""Several choices of one prompt: seeds of their own, ends of their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from di_engine import LLMEngine, SamplingParams

Drain = Callable[[LLMEngine], dict[str, list[Any]]]
Choices = dict[int, list[Any]]


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def async_scheduling(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def by_index(outputs: list[Any]) -> Choices:
    choices: Choices = defaultdict(list)
    for output in outputs:
        choices[output.index].append(output)
    return choices


def tokens(choices: Choices) -> list[tuple[int, ...]]:
    return [tuple(t for output in choices[index] for t in output.token_ids) for index in sorted(choices)]


def flat_with_end(prefix: tuple[int, ...]) -> dict[int, float]:
    """Ends with probability 1/5 at every step, so that choices differ in length."""
    return {1: 0.0, 100: 0.0, 101: 0.0, 102: 0.0, 103: 0.0}


@pytest.mark.parametrize("n", [2, 4, 8])
def test_r23_every_choice_arrives_and_usage_sums_them(make_scripted: Any, drain: Drain, n: int) -> None:
    lengths: set[int] = set()
    for seed in range(10):
        engine = make_scripted(flat_with_end, max_num_seqs=3)
        engine.add_request("a", [5, 6, 7], SamplingParams(n=n, seed=seed, max_tokens=20))
        outputs = drain(engine)["a"]
        choices = by_index(outputs)
        assert sorted(choices) == list(range(n))
        assert all(
            [output.finish_reason for output in choices[i]].count(None) == len(choices[i]) - 1
            for i in choices
        )
        assert [output.finished for output in outputs].count(True) == 1
        assert outputs[-1].finished
        assert outputs[-1].usage.prompt_tokens == 3
        assert outputs[-1].usage.completion_tokens == sum(map(len, tokens(choices)))
        lengths |= {len(each) for each in tokens(choices)}
    assert len(lengths) > 1


def test_r22_choices_differ_are_stable_and_stream_on(make_engine: Any, drain: Drain) -> None:
    params = SamplingParams(n=8, temperature=1.2, seed=3, max_tokens=6, ignore_eos=True)
    runs = []
    for _ in range(2):
        engine = make_engine()
        engine.add_request("a", [5, 6, 7], params)
        choices = by_index(drain(engine)["a"])
        assert sorted(choices) == list(range(8))
        assert all(len(choices[index]) == 6 for index in choices)
        assert all(choices[index][-1].finish_reason == "length" for index in choices)
        runs.append(tokens(choices))
    assert len(set(runs[0])) >= 2
    assert runs[0] == runs[1]
    alone = make_engine()
    alone.add_request("a", [5, 6, 7], SamplingParams(temperature=1.2, seed=3, max_tokens=6, ignore_eos=True))
    assert tokens(by_index(drain(alone)["a"])) == runs[0][:1]


def test_r22_later_choices_stream_when_the_first_ended(make_scripted: Any, drain: Drain) -> None:
    for seed in range(40):
        engine = make_scripted(flat_with_end)
        engine.add_request("a", [5], SamplingParams(n=8, seed=seed, max_tokens=30))
        outputs = drain(engine)["a"]
        choices = by_index(outputs)
        first_end = outputs.index(choices[0][-1])
        if len(choices[0]) == 1:
            break
    else:
        raise AssertionError("no seed ends choice 0 at once")
    assert {output.index for output in outputs[first_end + 1 :]} == set(range(1, 8)) - {
        index
        for index in choices
        if len(choices[index]) == 1 and outputs.index(choices[index][-1]) < first_end
    }
    assert all(choices[index][-1].finish_reason in ("stop", "length") for index in range(8))


def test_prompt_logprobs_come_once_for_all_choices(make_scripted: Any, drain: Drain) -> None:
    engine = make_scripted(flat_with_end)
    engine.add_request("a", [5, 6, 7], SamplingParams(n=3, seed=1, prompt_logprobs=2))
    outputs = drain(engine)["a"]
    assert outputs[0].index == 0
    assert [len(output.prompt_logprobs) for output in outputs if output.prompt_logprobs is not None] == [2]
    assert outputs[0].prompt_logprobs is not None


def test_an_abort_ends_the_choices_that_are_left(make_scripted: Any, drain: Drain) -> None:
    engine = make_scripted(lambda prefix: {100: 0.0}, max_num_seqs=2)
    engine.add_request("a", [5], SamplingParams(n=4, seed=1, max_tokens=2))
    for _ in range(2):
        engine.step()
    engine.abort("a")
    outputs = drain(engine)["a"]
    assert [(output.index, output.finish_reason) for output in outputs] == [(2, "abort"), (3, "abort")]
    assert [output.finished for output in outputs] == [False, True]
    assert engine.stats().counters.requests_finished == 1
