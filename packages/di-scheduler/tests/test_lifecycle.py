"""Ending a sequence at every point of its life: property 44. [n] marks a finding of the specification, section 16."""

import pytest
from di_scheduler import FinishReason, Scheduler, SequenceLimits, StepPolicy

from .harness import int32, small_config

LIMITS = SequenceLimits(max_tokens=9)


def one_chunked(policy: StepPolicy = StepPolicy.MIXED) -> Scheduler:
    scheduler = Scheduler(small_config(chunk=4, policy=policy))
    scheduler.add(1, int32([3] * 6), LIMITS)
    return scheduler


def check_empty(scheduler: Scheduler) -> None:
    stats = scheduler.stats()
    assert (stats.used_blocks, stats.used_slots, stats.waiting, stats.running) == (0, 0, 0, 0)
    assert not scheduler.has_unfinished()
    assert scheduler.plan().num_seqs == 0


def run_steps(scheduler: Scheduler, steps: int) -> None:
    for _ in range(steps):
        n = len(scheduler.plan().sampling)
        scheduler.commit(int32([7] * n), int32([1] * n))


@pytest.mark.parametrize("policy", StepPolicy)
@pytest.mark.parametrize(
    "steps", [0, 1, 2, 4], ids=["waiting", "between chunks", "decoding", "with two blocks"]
)
def test_abort_between_steps(policy: StepPolicy, steps: int) -> None:
    """[1] A half-prefilled sequence gives its blocks back too."""
    scheduler = one_chunked(policy)
    run_steps(scheduler, steps)
    assert scheduler.abort(1)
    assert not scheduler.abort(1)
    assert scheduler.stats().aborts == 1
    check_empty(scheduler)


@pytest.mark.parametrize(
    "steps, samples", [(0, False), (1, True), (3, True)], ids=["chunk", "last chunk", "decode"]
)
def test_abort_in_flight(steps: int, samples: bool) -> None:
    """The device may still write to its blocks: they are free at the commit, which reports the end once."""
    scheduler = one_chunked()
    run_steps(scheduler, steps)
    plan = scheduler.plan()
    assert scheduler.abort(1)
    assert scheduler.stats().used_blocks > 0
    assert scheduler.has_unfinished()
    n = len(plan.sampling)
    result = scheduler.commit(int32([7] * n), int32([1] * n))
    assert (n == 1) == samples
    assert result.num_committed.tolist() == [0] * n
    assert result.finish.tolist() == [FinishReason.ABORT] * n
    check_empty(scheduler)


def test_abort_while_preempted() -> None:
    scheduler = Scheduler(small_config(blocks=3, seqs=2))
    scheduler.add(0, int32([3] * 4), LIMITS)
    scheduler.add(1, int32([3]), LIMITS)
    while not scheduler.stats().preemptions:
        run_steps(scheduler, 1)
    assert scheduler.waiting_ids().tolist() == [1]
    assert scheduler.abort(1)
    assert scheduler.abort(0)
    check_empty(scheduler)


def test_the_caller_decides_other_ends_the_same_way() -> None:
    scheduler = one_chunked()
    run_steps(scheduler, 2)
    assert scheduler.finish(1, FinishReason.STOP_STRING)
    assert scheduler.describe(1).finish == FinishReason.STOP_STRING
    assert scheduler.stats().aborts == 0
    check_empty(scheduler)


def test_an_end_needs_a_reason() -> None:
    scheduler = one_chunked()
    with pytest.raises(ValueError, match="NONE"):
        scheduler.finish(1, FinishReason.NONE)
    with pytest.raises(TypeError, match="10"):
        scheduler.finish(1, 10)  # type: ignore[arg-type]
    assert scheduler.has_unfinished()


def test_unknown_and_late_ids_are_ignored() -> None:
    scheduler = one_chunked()
    assert not scheduler.abort(5)
    scheduler.abort(1)
    assert not scheduler.finish(1, FinishReason.ERROR)
    check_empty(scheduler)


def test_arrival_times_are_kept_as_given() -> None:
    """[20]"""
    scheduler = Scheduler(small_config(seqs=1))
    scheduler.add(1, int32([3]), LIMITS, arrival=12.5)
    scheduler.add(2, int32([3]), LIMITS, arrival=11.25)
    assert scheduler.stats().oldest_waiting_arrival == 11.25
    run_steps(scheduler, 2)
    assert scheduler.stats().oldest_waiting_arrival == 11.25
    assert [scheduler.describe(i).arrival for i in (1, 2)] == [12.5, 11.25]
    scheduler.abort(2)
    assert scheduler.stats().oldest_waiting_arrival is None


def test_what_an_aborted_transfer_still_holds_does_not_keep_others_from_going_on() -> None:
    """Its blocks come back when its lease ends, not with a commit: who lacks a block needs a victim now."""
    scheduler = Scheduler(small_config(blocks=4, seqs=3))
    ticket = scheduler.import_sequence(9, int32([5] * 4 + [7]), 4, LIMITS, expires=1000.0)
    assert scheduler.abort(9)
    scheduler.add(0, int32([3] * 4), LIMITS)
    scheduler.add(1, int32([3]), LIMITS)
    run_steps(scheduler, 4)
    assert scheduler.stats().free_blocks == 0
    plan = scheduler.plan()
    assert (plan.seq_ids.tolist(), plan.preempted.tolist()) == ([0], [1])
    scheduler.commit(int32([7]), int32([1]))
    assert ticket is not None
    assert scheduler.end_transfer(ticket)
    scheduler.abort(0)
    scheduler.abort(1)
    check_empty(scheduler)


def test_a_marked_victim_keeps_the_tokens_that_were_in_flight() -> None:
    """It has rows on the device, so it is preempted when they are committed, and the next plan tells."""
    scheduler = Scheduler(small_config(blocks=3, seqs=2, flights=2))
    scheduler.add(0, int32([3] * 4), LIMITS)
    scheduler.add(1, int32([3]), LIMITS)
    run_steps(scheduler, 3)
    open_plan = scheduler.plan()
    assert open_plan.seq_ids.tolist() == [0, 1]
    assert scheduler.stats().free_blocks == 0
    plan = scheduler.plan()  # 1 would need a second block
    assert (plan.seq_ids.tolist(), plan.preempted.tolist()) == ([0], [])
    assert scheduler.running_ids().tolist() == [0, 1]
    scheduler.commit(int32([7, 8]), int32([1, 1]))
    assert scheduler.output_tokens(1).tolist() == [7, 7, 7, 8]
    assert scheduler.waiting_ids().tolist() == [1]
    assert scheduler.stats().preemptions_in_flight == 1
    scheduler.commit(int32([7]), int32([1]))
    assert scheduler.plan().preempted.tolist() == [1]
