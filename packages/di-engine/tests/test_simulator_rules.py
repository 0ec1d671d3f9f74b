"""The reference's rule for prefill, and what it costs (scheduler spec, 6.1)."""

from __future__ import annotations

import numpy as np
import pytest
from di_engine.simulator import (
    FixedLengths,
    SimulationConfig,
    SimulationConfigError,
    SimulationRun,
    StepCurve,
    StepRule,
    SyntheticTrace,
    TraceRow,
    make_trace,
    simulate,
    summarize,
)
from di_engine.simulator.rules import WatermarkedScheduler
from di_engine.simulator.study import Contender, StudyConfig, compare_rules
from di_scheduler import Scheduler, SchedulerConfig, SequenceLimits, StepKind, StepPolicy

STEP = StepCurve(constant=1.0, per_row=0.0, per_context_token=0.0)
"""Every step takes one second, so that times count steps."""
HOMOGENEOUS = SchedulerConfig(num_blocks=256, num_slots=9, max_num_seqs=8, policy=StepPolicy.HOMOGENEOUS)


def serve(*rows: TraceRow, rule: StepRule = StepRule.REFERENCE, ranks: int = 1) -> SimulationRun:
    return simulate(make_trace(rows), SimulationConfig(HOMOGENEOUS, STEP, rule=rule, ranks=ranks))


def test_the_first_request_is_prefilled_at_once() -> None:
    run = serve(TraceRow(0.0, 10, 5))
    assert run.recorder.first_token.tolist() == [1.0]
    assert run.recorder.finished.tolist() == [5.0]


def test_a_prompt_waits_for_seventy_decode_steps() -> None:
    """Prefill, 70 decodes, prefill: the second request arrives when the first has just begun to decode."""
    run = serve(TraceRow(0.0, 10, 200), TraceRow(1.5, 10, 1))
    assert run.recorder.first_token.tolist() == [1.0, 72.0]
    own = serve(TraceRow(0.0, 10, 200), TraceRow(1.5, 10, 1), rule=StepRule.OWN)
    assert own.recorder.first_token[1] <= 4.0


def test_an_idle_engine_spins_until_its_counter_allows_a_prompt() -> None:
    """Finding 4 of the specification: the first request leaves the counter at 4, so 66 empty steps follow."""
    run = serve(TraceRow(0.0, 10, 5), TraceRow(10.0, 10, 1))
    assert run.recorder.first_token.tolist() == [1.0, 10.0 + 66 + 1]
    assert summarize(run).empty_steps == 66
    assert (
        serve(TraceRow(0.0, 10, 5), TraceRow(10.0, 10, 1), rule=StepRule.OWN).recorder.first_token[1] == 11.0
    )


def test_a_rank_that_wants_alone_waits_for_a_hundred_steps() -> None:
    """Both ranks prefill; then only one of them has a new prompt."""
    rows = [TraceRow(0.0, 10, 300), TraceRow(0.0, 10, 300), TraceRow(1.5, 10, 1)]
    run = serve(*rows, ranks=2)
    assert run.rank_of.tolist() == [0, 1, 0]
    assert run.recorder.first_token.tolist() == [1.0, 1.0, 102.0]
    own = serve(*rows, ranks=2, rule=StepRule.OWN)
    assert own.recorder.first_token[2] < 15.0


def test_the_rule_asks_for_homogeneous_synchronous_steps() -> None:
    for field, scheduler in {
        "policy": SchedulerConfig(num_blocks=8, num_slots=9, max_num_seqs=8),
        "max_steps_in_flight": SchedulerConfig(
            num_blocks=8, num_slots=9, max_num_seqs=8, policy=StepPolicy.HOMOGENEOUS, max_steps_in_flight=2
        ),
    }.items():
        with pytest.raises(SimulationConfigError) as caught:
            SimulationConfig(scheduler, rule=StepRule.REFERENCE)
        assert caught.value.field == field


def test_a_pool_that_is_too_full_wants_no_prefill() -> None:
    scheduler = Scheduler(
        SchedulerConfig(num_blocks=21, num_slots=3, block_size=4, max_num_seqs=2, max_model_len=80)
    )
    watermarked = WatermarkedScheduler(scheduler)
    scheduler.add(0, np.ones(68, np.int32), SequenceLimits(max_tokens=3))
    assert watermarked.wants_prefill()  # the null block is the only one in use
    scheduler.plan()
    scheduler.commit(np.ones(1, np.int32), np.ones(1, np.int32))
    assert not watermarked.wants_prefill()  # nothing to prefill
    scheduler.add(1, np.ones(4, np.int32), SequenceLimits(max_tokens=3))
    assert watermarked.wants_prefill()  # 18 of 21
    scheduler.plan(kind=StepKind.DECODE)
    scheduler.commit(np.ones(1, np.int32), np.ones(1, np.int32))
    assert scheduler.wants_prefill()
    assert not watermarked.wants_prefill()  # 19 of 21


def test_the_study_serves_the_same_traces_and_finds_the_cost() -> None:
    trace = SyntheticTrace(requests=60, prompt=FixedLengths(100), output=FixedLengths(50))
    config = StudyConfig(trace, HOMOGENEOUS, StepCurve(), rates=(2.0, 8.0), ranks=(1, 2))
    seen = []
    points = compare_rules(config, progress=seen.append)
    assert seen == points
    assert [(p.ranks, p.rate) for p in points if p.contender is Contender.MIXED] == [
        (1, 2.0),
        (1, 8.0),
        (2, 2.0),
        (2, 8.0),
    ]
    first = {(p.contender, p.ranks, p.rate): p.summary.time_to_first_token for p in points}
    for ranks, rate in ((1, 2.0), (1, 8.0), (2, 2.0), (2, 8.0)):
        reference = first[Contender.REFERENCE, ranks, rate]
        assert reference is not None
        for ours in (Contender.HOMOGENEOUS, Contender.MIXED):
            times = first[ours, ranks, rate]
            assert times is not None
            assert times.count == reference.count == 60 * ranks
            assert times.mean < 0.5 * reference.mean
