"""Log-probabilities of the prompt: all of them, once, the same bits whatever the chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from di_engine import LLMEngine, SamplingParams
from di_engine.runner import ModelRunner, StepResult
from di_engine.testing import follow

Drain = Callable[[LLMEngine], dict[str, list[Any]]]
PROMPT = tuple(10 + (7 * i) % 90 for i in range(33))
PARAMS = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=5)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def async_scheduling(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def of_prompt(engine: LLMEngine, drain: Drain, prompt: tuple[int, ...], request_id: str = "p") -> Any:
    engine.add_request(request_id, prompt, PARAMS)
    return drain(engine)[request_id][0].prompt_logprobs


@pytest.mark.parametrize("length", [31, 32, 33])
def test_r1_a_warm_engine_answers_as_a_cold_one(make_engine: Any, drain: Drain, length: int) -> None:
    engine = make_engine(block_size=32)
    prompt = PROMPT[:length]
    cold = of_prompt(engine, drain, prompt)
    assert [entry.token_id for entry in cold] == list(prompt[1:])
    of_prompt(engine, drain, (*PROMPT, 200, 201), "other")
    assert of_prompt(engine, drain, prompt) == cold
    assert of_prompt(engine, drain, prompt) == cold


@pytest.mark.parametrize("chunk", [7, 1, len(PROMPT) - 1])
def test_r2_one_list_with_the_first_output_after_the_last_chunk(
    make_engine: Any, drain: Drain, chunk: int
) -> None:
    whole = of_prompt(make_engine(), drain, PROMPT)
    engine = make_engine(max_chunk_tokens=chunk)
    engine.add_request("p", PROMPT, PARAMS)
    num_chunks = -(-len(PROMPT) // chunk)
    for _ in range(num_chunks - 1):
        assert engine.step() == []
    first, second = engine.step(), engine.step()
    assert len(first) == 1
    assert first[0].prompt_logprobs == whole
    assert len(whole) == len(PROMPT) - 1
    assert len(first[0].token_ids) == 1
    assert [output.prompt_logprobs for output in second] == [None]
    assert second[0].finished


def test_preemption_neither_repeats_nor_changes_them(make_engine: Any, drain: Drain) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, prompt_logprobs=3, logprobs=1)
    alone = {}
    for name, prompt in (("a", PROMPT[:20]), ("b", PROMPT[3:23])):
        engine = make_engine()
        engine.add_request(name, prompt, params)
        alone |= drain(engine)
    engine = make_engine(block_size=16, num_blocks=7, max_chunk_tokens=7, max_num_batched_tokens=16)
    engine.add_request("a", PROMPT[:20], params)
    engine.add_request("b", PROMPT[3:23], params)
    assert drain(engine) == alone
    assert engine.stats().scheduler.preemptions > 0


def test_a_prompt_of_one_token_has_none_to_report(make_scripted: Any, drain: Drain) -> None:
    engine = make_scripted(lambda prefix: {5: 0.0})
    assert of_prompt(engine, drain, (5,)) == ()


def test_only_those_who_wait_for_them_are_looked_at(make_scripted: Any, drain: Drain) -> None:
    seen: list[list[int]] = []

    class Watched(ModelRunner):
        def sample(self, *step: Any) -> StepResult:
            result = super().sample(*step)
            seen.append([len(entries) for entries in result.prompt_logprobs.values()])
            return result

    engine = make_scripted(follow((5, 6, 7, 8, 9)), runner=Watched)
    engine.add_request("silent", (5, 6, 7), SamplingParams(temperature=0, max_tokens=3))
    of_prompt(engine, drain, (5, 6, 7))
    assert seen[0] == [2]
    assert len(seen) > 2
    assert seen[-1] == []


def test_they_rank_the_prompts_own_tokens(make_scripted: Any, drain: Drain) -> None:
    engine = make_scripted(lambda prefix: {prefix[-1] + 1: 2.0, 5: 1.0})
    first, second = of_prompt(engine, drain, (10, 11, 5))
    assert (first.token_id, first.rank, first.top[0].token_id) == (11, 1, 11)
    assert (second.token_id, second.rank, second.logprob) == (5, 2, second.top[1].logprob)
    assert first.bytes == engine.tokenizer.decode([11]).encode()
