"""Several tokens committed in one step, as speculation does: every rule counts tokens, not steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from di_engine import EngineConfig, LLMEngine, SamplingParams, load_model
from di_engine.testing import follow
from di_spec import DraftContext, Proposal

Drain = Callable[[LLMEngine], dict[str, list[Any]]]
PROMPT = (10, 11, 12, 13)
BLOCK = 4
DRAFTS = {"max_draft_tokens": BLOCK - 1}


class PerfectDrafter:
    """Proposes what is known to follow ``PROMPT``: all of ``BLOCK - 1`` drafts are accepted."""

    def __init__(self, known: tuple[int, ...]) -> None:
        self.known = known

    def propose(self, context: DraftContext, max_tokens: int) -> Proposal:
        tokens = np.full((len(context.states), max_tokens), -1, dtype=np.int32)
        for row, position in enumerate(context.positions.tolist()):
            have = position + 1 - len(PROMPT)
            if have <= len(self.known):  # else it has ended, which the device does not know
                assert context.last_tokens[row] == self.known[have - 1]
            block = self.known[have : have + max_tokens]
            tokens[row, : len(block)] = block
        return Proposal(tokens)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def async_scheduling(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def tokens(outputs: list[Any]) -> tuple[int, ...]:
    return tuple(token for output in outputs for token in output.token_ids)


def test_r10_generation_ends_at_an_end_token_inside_a_block(
    checkpoint: Path, drain: Drain, async_scheduling: bool
) -> None:
    config = EngineConfig(
        model=checkpoint, max_num_seqs=2, max_draft_tokens=BLOCK - 1, async_scheduling=async_scheduling
    )
    loaded = load_model(config)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLMEngine(config, loaded=loaded) as engine:
        engine.add_request("a", PROMPT, params)
        greedy = tokens(drain(engine)["a"])
    assert len(greedy) == 12
    offsets = set()
    for at, end in enumerate(greedy):
        if end in greedy[:at]:
            continue
        offsets.add(at % BLOCK)
        declared = dataclasses.replace(loaded, config=dataclasses.replace(loaded.config, eos_token_id=end))
        with LLMEngine(config, loaded=declared, drafter=PerfectDrafter(greedy)) as engine:
            engine.add_request("a", PROMPT, dataclasses.replace(params, ignore_eos=False))
            outputs = drain(engine)["a"]
            assert tokens(outputs) == greedy[: at + 1]
            assert outputs[-1].finish_reason == "stop"
            assert len(outputs) == 1 + -(-at // BLOCK)  # the prompt's step has no drafts
            assert engine.stats().scheduler.used_blocks == 0
    assert offsets == set(range(BLOCK))


@pytest.mark.parametrize("max_tokens", range(1, 10))
def test_max_tokens_cuts_inside_a_block(make_scripted: Any, drain: Drain, max_tokens: int) -> None:
    story = tuple(range(100, 110))
    engine = make_scripted(follow((*PROMPT, *story)), drafter=PerfectDrafter(story), **DRAFTS)
    engine.add_request("a", PROMPT, SamplingParams(temperature=0, max_tokens=max_tokens))
    outputs = drain(engine)["a"]
    assert tokens(outputs) == story[:max_tokens]
    assert outputs[-1].finish_reason == "length"
    assert outputs[-1].usage.completion_tokens == max_tokens


def test_tokens_behind_a_stop_string_in_a_block_are_dropped(make_scripted: Any, drain: Drain) -> None:
    speller = make_scripted(follow())
    story = tuple(speller.tokenizer.encode("x")[0] + offset for offset in (0, 1, 2, 1, 0, 1))  # x y z y x y
    engine = make_scripted(follow((*PROMPT, *story)), drafter=PerfectDrafter(story), **DRAFTS)
    engine.add_request("a", PROMPT, SamplingParams(temperature=0, max_tokens=6, stop="zy"))
    engine.add_request("b", PROMPT, SamplingParams(temperature=0, max_tokens=6, stop="yx"))
    outputs = drain(engine)
    for name, count, text, stop in (("a", 4, "xy", "zy"), ("b", 5, "xyz", "yx")):
        assert tokens(outputs[name]) == story[:count]
        assert "".join(output.text for output in outputs[name]) == text
        assert (outputs[name][-1].finish_reason, outputs[name][-1].stop_reason) == ("stop", stop)
        assert outputs[name][-1].usage.completion_tokens == count
    assert engine.stats().scheduler.used_blocks == 0
