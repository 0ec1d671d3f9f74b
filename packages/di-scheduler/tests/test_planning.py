"""Which rows a step gets, scenario by scenario. [n] marks a finding of the scheduler specification, section 16."""

from dataclasses import replace

import numpy as np
import pytest
from di_scheduler import (
    Scheduler,
    SchedulerConfig,
    SequenceLimits,
    SequenceOptions,
    StepOrderError,
    StepPlan,
    StepPolicy,
)

from .harness import int32, small_config

Rows = list[tuple[int, int, int]]


def serving(config: SchedulerConfig, *prompt_lengths: int, max_tokens: int = 50) -> Scheduler:
    """A scheduler with one waiting sequence per length; ids count from 0."""
    scheduler = Scheduler(config)
    for seq_id, length in enumerate(prompt_lengths):
        scheduler.add(seq_id, int32([seq_id * 100 + i for i in range(length)]), SequenceLimits(max_tokens))
    return scheduler


def rows(plan: StepPlan) -> Rows:
    """(id, first position, rows) of each sequence."""
    return list(zip(plan.seq_ids.tolist(), plan.q_start.tolist(), plan.q_len.tolist(), strict=True))


def commit(scheduler: Scheduler, plan: StepPlan, token: int = 7) -> None:
    n = len(plan.sampling)
    scheduler.commit(np.full(n, token, np.int32), np.ones(n, np.int32))


def step(scheduler: Scheduler) -> Rows:
    plan = scheduler.plan()
    commit(scheduler, plan)
    return rows(plan)


def test_slots_to_spare_admit_no_more_sequences() -> None:
    scheduler = serving(replace(small_config(blocks=40, seqs=2), num_slots=9), 1, 1, 1)
    assert step(scheduler) == [(0, 0, 1), (1, 0, 1)]
    scheduler.abort(0)
    assert step(scheduler) == [(1, 1, 1), (2, 0, 1)]


def test_decode_rows_and_chunks_share_a_mixed_step() -> None:
    scheduler = serving(small_config(blocks=40, budget=8), 3, 14)
    assert step(scheduler) == [(0, 0, 3), (1, 0, 5)]
    assert step(scheduler) == [(0, 3, 1), (1, 5, 7)]
    assert step(scheduler) == [(0, 4, 1), (1, 12, 2)]
    assert step(scheduler) == [(0, 5, 1), (1, 14, 1)]


def test_an_older_prefill_leaves_rows_for_younger_decodes() -> None:
    scheduler = serving(small_config(blocks=40, budget=8, chunk=6), 20, 2)
    assert step(scheduler) == [(0, 0, 6), (1, 0, 2)]
    assert step(scheduler) == [(1, 2, 1), (0, 6, 6)]


def test_drafts_leave_a_row_for_prefill() -> None:
    """Else two streams with drafts would keep a prompt waiting for ever."""
    scheduler = serving(small_config(blocks=40, seqs=3, budget=8, drafts=3), 1, 1)
    for _ in range(5):
        n = len(scheduler.plan().sampling)
        scheduler.commit(int32([7] * n), int32([1] * n), drafts=np.full((n, 3), 6, np.int32))
    scheduler.add(9, int32([1, 2, 3]), SequenceLimits(5))
    plan = scheduler.plan()
    assert rows(plan) == [(0, 5, 4), (1, 5, 3), (9, 0, 1)]


def test_homogeneous_steps_take_turns() -> None:
    scheduler = serving(small_config(blocks=40, budget=8, policy=StepPolicy.HOMOGENEOUS), 3, 20)
    assert step(scheduler) == [(0, 0, 3), (1, 0, 5)]
    assert step(scheduler) == [(0, 3, 1)]
    assert step(scheduler) == [(1, 5, 8)]
    assert step(scheduler) == [(0, 4, 1)]
    assert step(scheduler) == [(1, 13, 7)]
    assert step(scheduler) == [(0, 5, 1), (1, 20, 1)]


def test_an_arrival_waits_for_one_decode_step_at_most() -> None:
    """[4, 5] No interval between prefill attempts."""
    scheduler = serving(small_config(blocks=40, policy=StepPolicy.HOMOGENEOUS), 3)
    for _ in range(10):
        step(scheduler)
    scheduler.add(9, int32([1, 2]), SequenceLimits(max_tokens=5))
    assert [i for i, _, _ in step(scheduler) + step(scheduler)].count(9) >= 1


def test_a_burst_after_idling_starts_at_once() -> None:
    """[4] Nothing is running: the next step is a prefill step, whatever the last one was."""
    scheduler = serving(small_config(blocks=40, policy=StepPolicy.HOMOGENEOUS), 3, max_tokens=1)
    for seq_id in range(1, 6):
        assert len(step(scheduler)) == 1
        scheduler.add(seq_id, int32([1, 2]), SequenceLimits(max_tokens=1))
    assert step(scheduler) == [(5, 0, 2)]


def test_blocks_are_taken_chunk_by_chunk() -> None:
    """[8] A long prompt does not lock up its blocks in advance."""
    scheduler = serving(small_config(blocks=8, budget=8, chunk=4), 24)
    for used in (1, 2, 3):
        plan = scheduler.plan()
        assert scheduler.stats().used_blocks == used
        assert plan.block_table.tolist() == [list(range(1, used + 1))]
        commit(scheduler, plan)


def test_nobody_is_preempted_while_no_block_is_needed() -> None:
    """[6, 9] With no free block at all, everyone who has room goes on."""
    scheduler = serving(small_config(blocks=3, seqs=2), 4, 1)
    step(scheduler)
    for position in range(3):
        assert step(scheduler) == [(0, 4 + position, 1), (1, 1 + position, 1)]
        assert scheduler.stats().free_blocks == 0
    assert scheduler.stats().preemptions == 0
    plan = scheduler.plan()  # now the younger one needs a second block
    assert (rows(plan), plan.preempted.tolist()) == ([(0, 7, 1)], [1])


def test_an_admission_leaves_a_free_block_for_each_running_sequence() -> None:
    scheduler = serving(small_config(blocks=2, seqs=2), 3, 3)
    assert step(scheduler) == [(0, 0, 3)]
    scheduler = serving(small_config(blocks=3, seqs=2), 3, 3)
    assert step(scheduler) == [(0, 0, 3), (1, 0, 3)]


def test_an_open_prefill_shrinks_to_the_room_there_is() -> None:
    scheduler = serving(small_config(blocks=5, budget=16, chunk=7), 7, 19, max_tokens=3)
    assert step(scheduler) == [(0, 0, 7), (1, 0, 7)]
    assert step(scheduler) == [(0, 7, 1), (1, 7, 5)]  # 7 rows would need two blocks
    assert scheduler.stats().preemptions == 0


def test_the_victim_is_the_latest_and_the_oldest_goes_on() -> None:
    """[10] Sequence 0 needs a third block: 2, the latest, gives up its own, and waits before 3."""
    scheduler = serving(small_config(blocks=6, seqs=3), 8, 3, 3, 3)
    assert step(scheduler) == [(0, 0, 8), (1, 0, 3), (2, 0, 3)]
    assert step(scheduler) == [(0, 8, 1), (1, 3, 1), (2, 3, 1)]
    plan = scheduler.plan()
    assert rows(plan) == [(0, 9, 1), (1, 4, 1)]
    assert plan.preempted.tolist() == [2]
    assert scheduler.waiting_ids().tolist() == [2, 3]
    assert scheduler.describe(2).slot == 0


def test_a_preempted_sequence_computes_all_its_tokens_again_and_yields_the_next() -> None:
    scheduler = serving(small_config(blocks=6, seqs=3), 8, 3, 3, max_tokens=6)
    while not scheduler.stats().preemptions:
        step(scheduler)
    generated = scheduler.output_tokens(2).tolist()
    assert generated == [7, 7]
    while 2 in scheduler.waiting_ids():
        plan = scheduler.plan()
        commit(scheduler, plan, token=8)
    i = plan.seq_ids.tolist().index(2)
    assert (plan.q_start[i], plan.q_len[i], plan.samples[i]) == (0, 5, True)
    assert plan.token_ids[plan.row_start[i] : plan.row_start[i + 1]].tolist() == [200, 201, 202, 7, 7]
    assert (plan.prompt_len[i], plan.output_len[i]) == (3, 2)
    assert scheduler.output_tokens(2).tolist() == [7, 7, 8]


def test_a_preempted_prefill_cannot_block_those_that_hold_blocks() -> None:
    """[7] Waiting sequences hold nothing, so whoever holds blocks is running and goes on."""
    scheduler = serving(small_config(blocks=6, seqs=3, budget=6, chunk=4), 20, 16, 12, max_tokens=3)
    for _ in range(60):
        step(scheduler)
        for seq_id in scheduler.waiting_ids().tolist():
            assert len(scheduler.describe(seq_id).block_table) == 0
    assert not scheduler.has_unfinished()
    assert scheduler.stats().free_blocks == 6


def test_context_is_what_stands_before_the_rows() -> None:
    scheduler = serving(small_config(budget=4, lookback=3), 6)
    plan = scheduler.plan()
    assert plan.context.tolist() == [[-1, -1, -1]]
    commit(scheduler, plan)
    plan = scheduler.plan()
    assert plan.context.tolist() == [[3, 2, 1]]
    commit(scheduler, plan)
    assert scheduler.plan().context.tolist() == [[5, 4, 3]]


def test_lookback_may_be_zero() -> None:
    scheduler = serving(small_config(lookback=0), 2)
    assert scheduler.plan().context.shape == (1, 0)


def test_an_idle_scheduler_plans_nothing_and_needs_no_commit() -> None:
    """[22] No step after the last one."""
    scheduler = Scheduler(small_config())
    for _ in range(2):
        plan = scheduler.plan()
        assert (plan.num_seqs, plan.num_rows, plan.step) == (0, 0, 0)
        assert plan.row_start.tolist() == [0]
        assert plan.block_table.shape == (0, 0)
        assert plan.context.shape == (0, 3)
    assert scheduler.commit(int32([]), int32([])).seq_ids.tolist() == []
    assert scheduler.stats().steps == 0


def test_plan_and_commit_alternate() -> None:
    scheduler = serving(small_config(), 2)
    with pytest.raises(StepOrderError, match=r"commit\(\)"):
        scheduler.commit(int32([]), int32([]))
    plan = scheduler.plan()
    with pytest.raises(StepOrderError, match=r"plan\(\)"):
        scheduler.plan()
    commit(scheduler, plan)
    with pytest.raises(StepOrderError, match=r"commit\(\)"):
        scheduler.commit(int32([]), int32([]))
    assert step(scheduler) == [(0, 2, 1)]


def test_a_plan_has_the_promised_types_and_owns_its_memory() -> None:
    """[17] Neither later steps nor another scheduler change what was handed out."""
    scheduler, other = serving(small_config(), 3, 2), serving(small_config(), 5)
    plan = scheduler.plan()
    dtypes = {
        name: getattr(plan, name).dtype.name
        for name in dir(plan)
        if isinstance(getattr(plan, name), np.ndarray)
    }
    assert {name for name, dtype in dtypes.items() if dtype == "int64"} == {
        "seq_ids",
        "copy_ids",
        "preempted",
        "expired",
    }
    assert {name for name, dtype in dtypes.items() if dtype == "bool"} == {"samples", "decodes"}
    assert {name for name, dtype in dtypes.items() if dtype == "float64"} == {"params"}
    assert set(dtypes.values()) == {"int64", "int32", "bool", "float64"}
    with pytest.raises(ValueError, match="read-only"):
        plan.token_ids[0] = 1
    before = {name: getattr(plan, name).copy() for name in dtypes}
    other.plan()
    commit(scheduler, plan)
    for _ in range(3):
        step(scheduler)
    del scheduler, other
    for name, array in before.items():
        np.testing.assert_array_equal(getattr(plan, name), array)


def test_steps_are_counted_by_kind() -> None:
    scheduler = serving(small_config(blocks=40, budget=8), 3, 14, max_tokens=3)
    while scheduler.has_unfinished():
        step(scheduler)
    stats = scheduler.stats()
    assert (stats.steps, stats.chunks, stats.mixed_steps) == (5, 2, 2)


def test_the_watermark_keeps_blocks_free_of_newcomers_only() -> None:
    """[6] Half of the pool stays free of new sequences, but what runs goes on, and who is alone may have it all."""
    config = replace(small_config(blocks=10, budget=40), watermark=0.5)
    scheduler = serving(config, 8, 9, 4)
    assert step(scheduler) == [
        (0, 0, 8)
    ]  # two blocks; three more would leave five, and one for each that runs
    for _ in range(25):
        assert [seq_id for seq_id, _, _ in step(scheduler)] == [0]
    assert scheduler.stats().free_blocks == 1
    scheduler.abort(0)
    assert step(scheduler) == [(1, 0, 9), (2, 0, 4)]
    lone = serving(config, 39)
    assert step(lone) == [(0, 0, 39)]


def test_an_urgent_request_takes_the_place_of_the_least_invested_lesser_one() -> None:
    scheduler = Scheduler(small_config(blocks=20, seqs=3))
    for seq_id, length in enumerate((6, 3, 9)):
        options = SequenceOptions(priority=5)
        scheduler.add(seq_id, int32([7] * length), SequenceLimits(50), options=options)
    step(scheduler)
    step(scheduler)
    scheduler.add(9, int32([1, 2]), SequenceLimits(50))
    plan = scheduler.plan()
    assert plan.preempted.tolist() == [1]
    assert rows(plan) == [(0, 7, 1), (2, 9, 1), (9, 0, 2)]
    commit(scheduler, plan)
    assert scheduler.running_ids().tolist() == [9, 0, 2]
    assert scheduler.waiting_ids().tolist() == [1]


def test_users_of_a_class_share_by_weight() -> None:
    """Two users with endless requests of one size: tokens served are as their weights."""
    scheduler = Scheduler(small_config(blocks=100, seqs=1, budget=8))
    weights = {0: 1.0, 1: 3.0}
    served = {0: 0, 1: 0}
    for seq_id in range(200):
        user = seq_id % 2
        options = SequenceOptions(user=user, weight=weights[user])
        scheduler.add(seq_id, int32([5] * 4), SequenceLimits(4), options=options)
    for _ in range(200):
        for seq_id, _, count in step(scheduler):
            served[seq_id % 2] += count
    assert served[1] / served[0] == pytest.approx(3.0, rel=0.1)


def test_a_request_that_is_not_ready_is_passed_a_bounded_number_of_times() -> None:
    """[11]"""
    scheduler = Scheduler(replace(small_config(blocks=100, seqs=1), max_overtakes=3))
    scheduler.add(0, int32([5]), SequenceLimits(1), options=SequenceOptions(ready=False))
    for seq_id in range(1, 6):
        scheduler.add(seq_id, int32([5]), SequenceLimits(1))
    started = [step(scheduler) for _ in range(5)]
    assert started == [[(1, 0, 1)], [(2, 0, 1)], [(3, 0, 1)], [], []]
    scheduler.add(8, int32([5]), SequenceLimits(1), options=SequenceOptions(user=1))
    assert step(scheduler) == [(8, 0, 1)]  # another user's queue
    assert scheduler.set_ready(0)
    assert not scheduler.set_ready(0)
    assert [step(scheduler)[0][0] for _ in range(3)] == [0, 4, 5]


def test_the_summed_context_of_a_step_is_bounded() -> None:
    config = replace(small_config(blocks=100, budget=40), max_step_context=12)
    scheduler = serving(config, 8, 4, 3)
    assert step(scheduler) == [(0, 0, 8), (1, 0, 4)]
    scheduler = serving(config, 20, 4)
    assert step(scheduler) == [(0, 0, 20)]  # the first piece is never refused
