"""The cost curve of a runner: which steps are timed, and when a stored curve is used instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from di_engine import LLMEngine, SamplingParams
from di_engine.config import EngineConfig
from di_engine.loading import LoadedModel, load_model
from di_engine.request import RequestSequence
from di_engine.runner import ModelRunner, StepResult
from di_engine.step_cost import curve_key, ladder, measured_draft_budget
from di_scheduler import SchedulerConfig, StepPlan
from di_scheduler.cost_curve import CostCurve
from di_scheduler.speculation import DraftBudget
from di_spec import DraftContext, Proposal
from torch import Tensor


class CountingRunner:
    """Computes nothing and remembers what it was given."""

    def __init__(self) -> None:
        self.plans: list[StepPlan] = []

    def copy(self, plan: StepPlan) -> None:
        raise AssertionError("nothing is copied while steps are timed")

    def forward(self, plan: StepPlan, sequences: Sequence[RequestSequence]) -> Tensor:
        self.plans.append(plan)
        return torch.empty(plan.num_rows, 1)

    def sample(self, plan: StepPlan, sequences: Sequence[RequestSequence], hidden: Tensor) -> StepResult:
        raise AssertionError("nothing is sampled while steps are timed")


@pytest.fixture(scope="module")
def engine_config(checkpoint: Path) -> EngineConfig:
    return EngineConfig(
        model=checkpoint, max_num_seqs=4, max_num_batched_tokens=32, num_blocks=12, max_draft_tokens=3
    )


@pytest.fixture(scope="module")
def loaded(engine_config: EngineConfig) -> LoadedModel:
    return load_model(engine_config)


def settings(loaded: LoadedModel, *, blocks: int | None = None) -> SchedulerConfig:
    return SchedulerConfig(
        num_blocks=blocks or loaded.capacity.num_blocks,
        num_slots=loaded.capacity.num_slots,
        block_size=loaded.capacity.layout.spec.block_size,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_model_len=loaded.capacity.max_model_len,
        max_draft_tokens=3,
    )


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, (1,)), (2, (1, 2)), (16, (1, 2, 4, 8, 16)), (17, (1, 2, 4, 8, 16, 17))]
)
def test_sizes_double_up_to_the_largest_step(most: int, sizes: tuple[int, ...]) -> None:
    assert ladder(most) == sizes


def test_steps_of_decodes_are_timed_and_no_others(loaded: LoadedModel, engine_config: EngineConfig) -> None:
    runner = CountingRunner()
    measured_draft_budget(loaded, runner, settings(loaded), engine_config)
    assert [plan.num_rows for plan in runner.plans[::6]] == [16, 8, 4, 2, 1]
    assert [plan.num_seqs for plan in runner.plans[::6]] == [4, 4, 4, 2, 1]
    assert max(int(plan.q_len.max()) for plan in runner.plans) == 4


@pytest.mark.parametrize("blocks", [2, 3, 5])
def test_a_pool_that_holds_few_sequences_bounds_the_curve(
    loaded: LoadedModel, engine_config: EngineConfig, blocks: int
) -> None:
    runner = CountingRunner()
    measured_draft_budget(loaded, runner, settings(loaded, blocks=blocks), engine_config)
    assert max(plan.num_rows for plan in runner.plans) == 4 * max(1, (blocks - 1) // 2)


@pytest.mark.parametrize(("blocks", "rows"), [(2, [1]), (3, [3, 2, 1]), (4, [4, 2, 1])])
def test_a_pool_smaller_than_the_longest_sequence_bounds_its_rows(
    loaded: LoadedModel, engine_config: EngineConfig, blocks: int, rows: list[int]
) -> None:
    """Blocks of two tokens, one of which stays free for what is generated, under drafts that make four rows."""
    runner = CountingRunner()
    tight = replace(settings(loaded, blocks=blocks), block_size=2)
    measured_draft_budget(loaded, runner, tight, engine_config)
    assert [plan.num_rows for plan in runner.plans[::6]] == rows


def test_a_stored_curve_is_used_by_the_next_start(
    loaded: LoadedModel, engine_config: EngineConfig, tmp_path: Path
) -> None:
    first, second = CountingRunner(), CountingRunner()
    budget = measured_draft_budget(
        loaded, first, settings(loaded), replace(engine_config, curve_directory=tmp_path)
    )
    again = measured_draft_budget(
        loaded, second, settings(loaded), replace(engine_config, curve_directory=tmp_path)
    )
    assert first.plans
    assert not second.plans
    assert again.milliseconds(8, 4) == budget.milliseconds(8, 4)


def test_a_real_runner_costs_more_for_more_rows(
    loaded: LoadedModel, engine_config: EngineConfig, tmp_path: Path
) -> None:
    runner = ModelRunner(loaded)
    budget = measured_draft_budget(
        loaded, runner, settings(loaded), replace(engine_config, curve_directory=tmp_path)
    )
    assert budget.milliseconds(16, 4) > 0
    with pytest.raises(ValueError, match="rows"):
        budget.milliseconds(0, 4)


def test_other_software_models_and_sizes_have_other_keys(
    loaded: LoadedModel, engine_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = curve_key(loaded, engine_config, (1, 2))
    assert key.digest() == curve_key(loaded, engine_config, (1, 2)).digest()
    others = [
        curve_key(loaded, engine_config, (1, 2, 4)),
        curve_key(loaded, replace(engine_config, block_size=64), (1, 2)),
        curve_key(loaded, replace(engine_config, max_draft_tokens=4), (1, 2)),
        replace(key, model="another"),
        replace(key, software=(("torch", "0"),)),
        replace(key, device="another"),
    ]
    monkeypatch.setattr("di_engine.step_cost.num_threads", lambda: 77)
    others.append(curve_key(loaded, engine_config, (1, 2)))
    assert len({key.digest(), *(other.digest() for other in others)}) == 8


class CountingDrafter:
    """Proposes the same tokens whatever comes."""

    def propose(self, context: DraftContext, max_tokens: int) -> Proposal:
        return Proposal(np.full((len(context.states), max_tokens), 7, dtype=np.int32))


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_an_engine_measures_at_start_learns_from_its_steps_and_gives_the_same_tokens(
    loaded: LoadedModel, engine_config: EngineConfig, tmp_path: Path, async_scheduling: bool
) -> None:
    outputs = []
    for measures in (False, True):
        config = replace(
            engine_config,
            async_scheduling=async_scheduling,
            measure_step_cost=measures,
            curve_directory=tmp_path,
        )
        with LLMEngine(config, loaded=loaded, drafter=CountingDrafter()) as engine:
            for name in ("a", "b", "c"):
                engine.add_request(name, [5, 6, 7], SamplingParams(max_tokens=12, seed=3, ignore_eos=True))
            tokens: list[int] = []
            while engine.has_unfinished():
                tokens += [
                    t for output in engine.step() if output.request_id == "b" for t in output.token_ids
                ]
            outputs.append(tokens)
            learnt = engine._step_cost
            assert (learnt is None) != measures
            assert learnt is None or learnt.milliseconds(3, 3) > 0
    assert len(outputs[0]) == 12
    assert outputs[0] == outputs[1]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("learn", [False, True])
def test_a_cost_that_is_set_learns_when_told_to(
    loaded: LoadedModel, engine_config: EngineConfig, learn: bool
) -> None:
    budget = DraftBudget(CostCurve((1, 16), (1e6, 2e6), stepped=False))
    before = budget.milliseconds(4, 1)
    with LLMEngine(engine_config, loaded=loaded, drafter=CountingDrafter()) as engine:
        engine.set_step_cost(budget, learn=learn)
        engine.add_request("a", [5, 6, 7], SamplingParams(max_tokens=40, seed=3, ignore_eos=True))
        while engine.has_unfinished():
            engine.step()
    assert (budget.milliseconds(4, 1) != before) == learn
