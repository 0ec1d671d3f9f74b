"""The simulator: times that can be computed by hand, and what holds for every run."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import numpy as np
import pytest
from di_engine.simulator import (
    FixedLengths,
    LogNormalLengths,
    SimulationConfig,
    SimulationConfigError,
    SimulationRun,
    StepCurve,
    SyntheticTrace,
    Trace,
    TraceRow,
    ZipfLengths,
    make_trace,
    simulate,
    summarize,
)
from di_engine.simulator.rank import Rank
from di_scheduler import FinishReason, SchedulerConfig, StepPolicy

SIMPLE = StepCurve(constant=1.0, per_row=0.1, per_context_token=0.01)
A = TraceRow(arrival=0.0, prompt=4, output=3)
B = TraceRow(arrival=0.5, prompt=2, output=1)


def config(
    num_blocks: int = 512, block_size: int = 16, max_num_seqs: int = 16, budget: int = 64, **settings: object
) -> SchedulerConfig:
    values: dict[str, object] = {"max_model_len": num_blocks * block_size, **settings}
    return SchedulerConfig(
        num_blocks=num_blocks,
        num_slots=max_num_seqs + 1,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        **values,
    )


def serve(
    rows: Sequence[TraceRow], scheduler: SchedulerConfig | None = None, **settings: object
) -> SimulationRun:
    settings = {"curve": SIMPLE, **settings}
    return simulate(make_trace(rows), SimulationConfig(scheduler or config(), **settings))


# --- by hand


def test_one_request_takes_the_cost_of_its_steps() -> None:
    run = serve([A])
    first = 1 + 4 * 0.1 + 4 * 0.01
    finish = first + (1 + 0.1 + 5 * 0.01) + (1 + 0.1 + 6 * 0.01)
    assert run.recorder.first_token == pytest.approx([first])
    assert run.recorder.finished == pytest.approx([finish])
    summary = summarize(run)
    assert (summary.steps, summary.rows, summary.output_tokens, summary.preemptions) == (3, 6, 3, 0)
    assert summary.time_between_tokens is not None
    assert summary.time_between_tokens.count == 2
    assert summary.time_between_tokens.worst == pytest.approx(1.16)
    assert summary.time_between_tokens.p50 == pytest.approx(1.15)
    assert summary.seconds == pytest.approx(finish)
    assert summary.device_use == pytest.approx(1.0)


def test_a_request_that_arrives_during_a_step_joins_the_next() -> None:
    run = serve([A, B])
    second = 1.44 + (1 + 3 * 0.1 + (5 + 2) * 0.01)
    assert run.recorder.first_token == pytest.approx([1.44, second])
    assert run.recorder.finished == pytest.approx([second + 1.16, second])
    assert summarize(run).worst_wait == pytest.approx(1.44 - 0.5)


def test_host_time_comes_before_every_step() -> None:
    run = serve([A], curve=dataclasses.replace(SIMPLE, host=0.25))
    assert run.recorder.finished == pytest.approx([0.25 + 1.44 + 0.25 + 1.15 + 0.25 + 1.16])


def test_asynchronous_scheduling_hides_host_time_and_looks_one_step_ahead() -> None:
    run = serve([A, B], config(max_steps_in_flight=2), curve=dataclasses.replace(SIMPLE, host=0.25))
    second = 0.25 + 1.44 + 1.15  # planned when the first began: without B
    third = second + (1 + 3 * 0.1 + (6 + 2) * 0.01)
    assert run.recorder.finished == pytest.approx([third, third])
    assert summarize(run).steps == 3


def test_a_chunked_prompt_takes_several_steps() -> None:
    run = serve([TraceRow(0.0, 10, 1)], config(budget=4, max_num_seqs=4))
    assert run.recorder.first_token == pytest.approx([(1 + 0.4 + 0.04) + (1 + 0.4 + 0.08) + (1 + 0.2 + 0.1)])


def test_the_slowest_rank_sets_the_pace_of_ranks_in_lockstep() -> None:
    rows = [TraceRow(0.0, 4, 1), TraceRow(0.0, 9, 1)]
    together = serve(rows, ranks=2)
    assert together.rank_of.tolist() == [0, 1]
    assert together.recorder.finished == pytest.approx([1.99, 1.99])
    apart = serve(rows, ranks=2, lockstep=False)
    assert apart.recorder.finished == pytest.approx([1.44, 1.99])


def test_accepted_drafts_bring_several_tokens_at_once() -> None:
    """Prefill brings 1 token, the next step 1 + 3, the last one the remaining 2."""
    run = serve([TraceRow(0.0, 4, 7)], config(max_draft_tokens=3), acceptance=1.0)
    summary = summarize(run)
    assert (summary.steps, summary.output_tokens) == (3, 7)
    assert summary.time_between_tokens is not None
    assert summary.time_between_tokens.count == 2
    none = summarize(serve([TraceRow(0.0, 4, 7)], config(max_draft_tokens=3), acceptance=0.0))
    assert (none.steps, none.drafts_accepted) == (7, 0)


def test_a_rank_holds_the_tokens_of_unfinished_requests_only() -> None:
    rank = Rank(make_trace([TraceRow(0.0, 4, 5), TraceRow(0.0, 7, 2)]), config(max_draft_tokens=2), 1.0, 0)
    held = []
    assert rank.add(0)
    assert rank.add(1)
    while rank.scheduler.has_unfinished():
        held.append(rank.held_tokens)
        rank.commit(rank.draw(rank.scheduler.plan()), 0.0)
    assert held == [
        11,
        13,
        8,
    ]  # prompts; one token each; the first has accepted two drafts, the second has ended
    assert rank.held_tokens == 0


def test_no_request_at_all() -> None:
    summary = summarize(serve([]))
    assert (summary.requests, summary.steps, summary.seconds) == (0, 0, 0.0)
    assert summary.time_to_first_token is None
    assert summary.time_between_tokens is None
    assert summary.worst_wait is None
    assert summary.kv_use_peak == 0.0


def test_a_request_that_can_never_fit_is_refused_and_the_rest_served() -> None:
    run = serve([TraceRow(0.0, 500, 1), B], config(num_blocks=8, max_model_len=100))
    assert run.refused.tolist() == [True, False]
    assert np.isnan(run.recorder.finished).tolist() == [True, False]
    summary = summarize(run)
    assert (summary.refused, summary.finished, summary.prompt_tokens) == (1, 1, B.prompt)


# --- every run

LOAD = SyntheticTrace(
    requests=300,
    rate=20.0,
    burst=3.0,
    prompt=LogNormalLengths(40, 1.0, 200),
    output=ZipfLengths(1.0, 60),
    users=3,
    classes=(1.0, 2.0),
    seed=11,
)

SCHEDULERS = {
    "mixed": {},
    "homogeneous": {"policy": StepPolicy.HOMOGENEOUS},
    "asynchronous": {"max_steps_in_flight": 2},
    "drafts": {"max_draft_tokens": 3},
    "asynchronous drafts": {"max_draft_tokens": 3, "max_steps_in_flight": 2},
    "scarce blocks": {"num_blocks": 24, "max_model_len": 300},
    "scarce blocks, asynchronous drafts": {
        "num_blocks": 24,
        "max_model_len": 300,
        "max_draft_tokens": 3,
        "max_steps_in_flight": 2,
    },
}


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_request_finishes_once_with_all_its_tokens(name: str, ranks: int, lockstep: bool) -> None:
    trace = LOAD.generate()
    run = simulate(
        trace,
        SimulationConfig(config(**SCHEDULERS[name]), StepCurve(), ranks=ranks, lockstep=lockstep),
    )
    recorder, summary = run.recorder, summarize(run)
    assert (recorder.times_ended == 1).all()
    assert (recorder.reason == FinishReason.LENGTH).all()
    assert recorder.tokens.tolist() == trace.output.tolist()
    assert (recorder.first_token > trace.arrival).all()
    assert (recorder.finished >= recorder.first_token).all()
    assert all(stats.used_blocks == 0 and stats.used_slots == 0 for stats in run.stats)
    assert summary.output_tokens == sum(stats.tokens_committed for stats in run.stats)
    least_rows = int((trace.prompt + trace.output - 1).sum())
    if summary.drafts_accepted:
        least_rows = int(trace.prompt.sum())
    assert summary.rows >= least_rows
    if not summary.preemptions and not summary.drafts_planned and "asynchronous" not in name:
        assert summary.rows == least_rows
    if name.startswith("scarce") and ranks == 1:  # more ranks have more blocks
        assert summary.preemptions > 0
        assert summary.kv_use_peak > 0.8
    assert recorder.gaps.weights
    if not summary.drafts_planned:
        assert sum(recorder.gaps.weights) == int((trace.output - 1).sum())


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_same_seed_gives_the_same_run(name: str) -> None:
    settings = SimulationConfig(config(**SCHEDULERS[name]), StepCurve(), ranks=2)
    first, second = (summarize(simulate(LOAD.generate(), settings)) for _ in range(2))
    assert first == second
    other = summarize(simulate(dataclasses.replace(LOAD, seed=12).generate(), settings))
    assert other != first


def test_acceptance_of_drafts_does_not_depend_on_the_schedule() -> None:
    """With room for every draft, the steps that a request takes are a matter of its own draws."""
    trace = SyntheticTrace(requests=40, prompt=FixedLengths(5), output=FixedLengths(30)).generate()
    scheduler = config(max_draft_tokens=2, budget=256)
    counts = []
    for rate in (1.0, 1000.0):
        scaled = dataclasses.replace(trace, arrival=trace.arrival / rate)
        run = simulate(scaled, SimulationConfig(scheduler, StepCurve(), acceptance=0.5))
        counts.append((run.stats[0].drafts_accepted, sum(run.recorder.gaps.weights)))
    assert counts[0] == counts[1]
    assert counts[0][0] > 0


def test_users_who_compete_get_equal_service() -> None:
    flood = [TraceRow(0.0, 100, 20, user=0) for _ in range(60)]
    late = [TraceRow(0.5, 100, 20, user=1) for _ in range(60)]
    curve = StepCurve(constant=0.2, per_row=1e-3)
    fair = summarize(serve([*flood, *late], config(max_num_seqs=4), curve=curve))
    assert fair.fairness is not None
    assert fair.fairness > 0.95
    one_user = [dataclasses.replace(row, user=0) for row in flood + late]
    assert summarize(serve(one_user, config(max_num_seqs=4), curve=curve)).fairness is None


def test_urgent_requests_wait_less() -> None:
    classes = dataclasses.replace(LOAD, rate=200.0, classes=(1.0, 9.0), users=1).generate()
    run = simulate(classes, SimulationConfig(config(max_num_seqs=4), StepCurve()))
    waits = run.recorder.first_token - classes.arrival
    assert waits[classes.priority == 0].mean() < 0.5 * waits[classes.priority == 1].mean()


def test_a_hundred_thousand_requests_a_minute() -> None:
    """By processor time, which other work on the machine hardly changes."""
    trace = SyntheticTrace(requests=3000, rate=25.0).generate()
    scheduler = SchedulerConfig(num_blocks=4096, num_slots=257, max_model_len=trace.longest)
    start = time.process_time()
    simulate(trace, SimulationConfig(scheduler))
    assert time.process_time() - start < 60 * len(trace) / 100_000


@pytest.mark.parametrize(
    "settings",
    [
        {"ranks": 0},
        {"snapshot_delay": -1.0},
        {"snapshot_interval": 0.0},
        {"acceptance": 1.5},
        {"dead_ranks": frozenset({0})},
        {"seed": -1},
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, object]) -> None:
    with pytest.raises(SimulationConfigError) as caught:
        SimulationConfig(config(), **settings)
    assert caught.value.field in settings


def test_a_trace_stays_in_order_of_arrival() -> None:
    trace: Trace = make_trace([B, A])
    assert trace.arrival.tolist() == [0.0, 0.5]
    assert trace.prompt.tolist() == [4, 2]
    assert trace.longest == 7
