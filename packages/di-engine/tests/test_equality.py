"""The equality contract: tokens and log-probability bits of a request do not depend on anything around it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import di_kernels
import pytest
import torch
from di_engine import LLMEngine, LoadedModel, RequestOutput, SamplingParams
from di_engine.config import EngineConfig
from di_engine.loading import load_model
from di_engine.runner import ModelRunner
from di_spec import Drafter

Drain = Callable[[LLMEngine], dict[str, list[Any]]]
PROMPT = tuple(10 + (7 * i) % 240 for i in range(40))
VOCABULARY = 320


def of_one(outputs: list[RequestOutput], length: int) -> list[RequestOutput]:
    """The outputs, which must be those of a whole generation: an error equals itself, too."""
    assert [output.error for output in outputs] == [None] * length
    return outputs


@pytest.mark.parametrize("numerics", ["release", "float32"])
def test_r46_decode_agrees_with_prefill_at_every_length(
    make_engine: Any, drain: Drain, numerics: str
) -> None:
    """All logits behind n tokens, n up to 4 * ratio + 3: prefilled at once, in chunks, and by one decode step."""
    engine = make_engine(numerics=numerics)
    chunked = {size: make_engine(numerics=numerics, max_chunk_tokens=size) for size in (1, 2, 3)}
    for n in range(1, 4 * 2 + 3 + 1):
        one = SamplingParams(temperature=0, max_tokens=1, logprobs=VOCABULARY)
        engine.add_request("prefill", PROMPT[:n], one)
        (prefill,) = of_one(drain(engine)["prefill"], 1)
        assert len(prefill.logprobs[0].top) == VOCABULARY
        for size, other in chunked.items():
            other.add_request("chunks", PROMPT[:n], one)
            (chunks,) = of_one(drain(other)["chunks"], 1)
            assert chunks.logprobs == prefill.logprobs, (n, size)
        if n > 1:
            forced = SamplingParams(
                temperature=0,
                max_tokens=2,
                logprobs=VOCABULARY,
                golden_token_ids=[PROMPT[n - 1]],
                ignore_eos=True,
            )
            engine.add_request("decode", PROMPT[: n - 1], forced)
            _, decode = of_one(drain(engine)["decode"], 2)
            assert decode.logprobs == prefill.logprobs, n


@pytest.mark.parametrize("neighbours", ["none", "unseeded", "seeded", "eight", "preempted"])
def test_r19_a_seeded_request_ignores_its_neighbours(make_engine: Any, drain: Drain, neighbours: str) -> None:
    params = SamplingParams(temperature=1.0, top_p=0.95, seed=42, max_tokens=30, logprobs=1, ignore_eos=True)
    alone = make_engine()
    alone.add_request("a", PROMPT[:9], params)
    expected = of_one(drain(alone)["a"], 30)
    assert len({output.token_ids for output in expected}) > 5

    tight = (
        {"block_size": 16, "num_blocks": 8, "max_num_batched_tokens": 16} if neighbours == "preempted" else {}
    )
    engine = make_engine(max_num_seqs=9, **tight) if not tight else make_engine(**tight)
    others = {"none": [], "unseeded": [None], "seeded": [7], "eight": [None, 1, 2, 3, None, 42, 5, 6]}
    for index, seed in enumerate(others.get(neighbours, [None, 7])):
        # Neighbours come first: "a" has another slot and row, and is the one that gives up its blocks.
        other = SamplingParams(temperature=1.3, seed=seed, max_tokens=25 + index, ignore_eos=True)
        engine.add_request(f"b{index}", PROMPT[index : 20 + index], other)
    engine.add_request("a", PROMPT[:9], params)
    assert drain(engine)["a"] == expected
    assert (engine.stats().scheduler.preemptions > 0) == (neighbours == "preempted")


def beside(
    loaded: LoadedModel, config: EngineConfig, drain: Drain, count: int, prefilling: bool
) -> list[RequestOutput]:
    """Outputs of one request among ``count`` decoding neighbours, and one whose prompt is still being read."""
    with LLMEngine(config, loaded=loaded) as engine:
        long = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
        for index in range(count):
            engine.add_request(f"n{index}", PROMPT[index % 20 : index % 20 + 3 + index % 5], long)
        engine.step()
        params = SamplingParams(temperature=0, max_tokens=4, logprobs=4, prompt_logprobs=2, ignore_eos=True)
        engine.add_request("x", PROMPT[:11], params)
        if prefilling:
            engine.add_request("p", PROMPT * 3, SamplingParams(max_tokens=1, seed=1))
        outputs = []
        while not outputs or not outputs[-1].finished:
            outputs += [output for output in engine.step() if output.request_id == "x"]
        decoding = engine.stats().scheduler.running
        assert decoding == count + prefilling
        return of_one(outputs, 4)


def crowded(checkpoint: Path, num_threads: int | None) -> EngineConfig:
    return EngineConfig(
        model=checkpoint,
        max_num_seqs=66,
        max_num_batched_tokens=128,
        max_chunk_tokens=16,
        num_threads=num_threads,
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_r68_any_number_of_neighbours(checkpoint: Path, drain: Drain, threads: int) -> None:
    config = crowded(checkpoint, threads)
    loaded = load_model(config)
    expected = beside(loaded, crowded(checkpoint, 1), drain, 0, prefilling=False)
    for count in (0, 1, 7, 44, 45, 64):
        for prefilling in (False, True):
            assert beside(loaded, config, drain, count, prefilling) == expected, (count, prefilling)


def test_r68_threads_that_share_even_the_smallest_work(checkpoint: Path, drain: Drain) -> None:
    config = crowded(checkpoint, None)
    loaded = load_model(config)
    expected = beside(loaded, config, drain, 0, prefilling=False)
    di_kernels.set_num_threads(2, work_per_thread=1)
    for count, prefilling in ((0, False), (7, True)):
        assert beside(loaded, config, drain, count, prefilling) == expected, (count, prefilling)


class PoisonedRunner(ModelRunner):
    """Its pools start as NaN, and logits are computed row by row."""

    def __init__(self, loaded: LoadedModel, drafter: Drafter | None) -> None:
        super().__init__(loaded, drafter, logits_tile_bytes=1)
        self.cache.poison_blocks(torch.arange(self.cache.num_blocks))
        self.cache.poison_slots(torch.arange(self.cache.num_slots))


def test_neither_old_cache_contents_nor_tiles_of_logits_show(checkpoint: Path, drain: Drain) -> None:
    config = EngineConfig(model=checkpoint, max_num_seqs=4, max_chunk_tokens=9, block_size=16, num_blocks=9)
    loaded = load_model(config)
    params = SamplingParams(
        temperature=0.8, seed=1, max_tokens=20, logprobs=2, prompt_logprobs=2, ignore_eos=True
    )
    outputs = []
    for runner in (ModelRunner, PoisonedRunner):
        with LLMEngine(config, loaded=loaded, runner=runner) as engine:
            for index in range(4):
                engine.add_request(f"r{index}", PROMPT[index : 20 + 4 * index], params)
            outputs.append(drain(engine))
            assert engine.stats().scheduler.preemptions > 0
    assert outputs[0] == outputs[1]
    assert all(of_one(each, 20) for each in outputs[0].values())


SCHEDULES: tuple[dict[str, Any], ...] = (
    {"policy": "homogeneous"},
    {"max_chunk_tokens": 7},
    {"max_num_batched_tokens": 8, "policy": "homogeneous"},
    {"block_size": 16, "num_blocks": 10},
    {"block_size": 4, "num_blocks": 30, "max_chunk_tokens": 5},
    {"max_draft_tokens": 0},
    {"async_scheduling": True},
    {"async_scheduling": True, "block_size": 16, "num_blocks": 10, "max_chunk_tokens": 7},
)


@pytest.mark.parametrize("numerics", ["release", "float32"])
def test_no_schedule_changes_a_bit(make_engine: Any, drain: Drain, numerics: str) -> None:
    params = [
        SamplingParams(temperature=0.8, seed=seed, max_tokens=20, logprobs=2, ignore_eos=True)
        for seed in range(3)
    ]
    alone: dict[str, list[RequestOutput]] = {}
    engine = make_engine(numerics=numerics)
    for index, each in enumerate(params):
        engine.add_request(f"r{index}", PROMPT[index : 25 + 5 * index], each)
        alone |= drain(engine)
    assert all(of_one(outputs, 20) for outputs in alone.values())
    for schedule in SCHEDULES:
        engine = make_engine(numerics=numerics, **schedule)
        for index, each in enumerate(params):
            engine.add_request(f"r{index}", PROMPT[index : 25 + 5 * index], each)
        assert drain(engine) == alone, schedule
        assert (engine.stats().scheduler.preemptions > 0) == ("num_blocks" in schedule)


@pytest.mark.parametrize("native_plan", [True, False])
@pytest.mark.parametrize("numerics", ["release", "float32"])
def test_no_weight_layout_changes_a_bit(
    make_engine: Any, drain: Drain, tmp_path: Path, numerics: str, native_plan: bool
) -> None:
    sampling = SamplingParams(temperature=0.8, max_tokens=5, seed=3, logprobs=VOCABULARY)
    settings = {"numerics": numerics, "native_plan": native_plan}
    layouts = ({"weight_layout": "stored"}, {"weight_layout": "packed"}, {"packed_directory": tmp_path})
    outputs = []
    for layout in (
        *layouts,
        layouts[-1],
    ):  # the second engine of the directory maps what the first has written
        engine = make_engine(**settings, **layout)
        for place in range(3):
            engine.add_request(f"r{place}", PROMPT[: 9 + 10 * place], sampling)
        outputs.append(drain(engine))
    assert len(list(tmp_path.glob("*.packed"))) == 1
    for request, stored in outputs[0].items():
        of_one(stored, 5)
        for other in outputs[1:]:
            assert [output.logprobs for output in other[request]] == [output.logprobs for output in stored]
