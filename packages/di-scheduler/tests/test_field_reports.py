"""Faults that users of other engines met, replayed (field reports R13, R14, R25, R61, R62)."""

import pytest
from di_scheduler import AdmissionError, FinishReason, Scheduler, SequenceLimits, StepPolicy

from .harness import int32, small_config


def run_step(scheduler: Scheduler) -> dict[int, FinishReason]:
    n = len(scheduler.plan().sampling)
    result = scheduler.commit(int32([7] * n), int32([1] * n))
    return {int(i): FinishReason(f) for i, f in zip(result.seq_ids, result.finish, strict=True) if f}


def test_r13_a_prompt_larger_than_the_pool_is_refused_and_blocks_nobody() -> None:
    scheduler = Scheduler(small_config(blocks=12, block_size=4, model_len=4096))
    capacity = 12 * 4
    scheduler.add(0, int32([5] * (capacity - 1)), SequenceLimits(max_tokens=20))
    for excess in (0, 1):
        with pytest.raises(AdmissionError, match="12 blocks of 4 tokens allows at most 47") as caught:
            scheduler.add(1, int32([5] * (capacity + excess)), SequenceLimits(max_tokens=20))
        assert caught.value.reason == "pool_too_small"
    scheduler.add(2, int32([5, 6]), SequenceLimits(max_tokens=2))
    ends = [run_step(scheduler) for _ in range(7)]
    assert [end for end in ends if end] == [{0: FinishReason.LENGTH}, {2: FinishReason.LENGTH}]
    assert scheduler.stats().free_blocks == 12


@pytest.mark.parametrize("policy", StepPolicy)
def test_r14_a_sequence_that_outgrows_the_pool_ends_once_and_clearly(policy: StepPolicy) -> None:
    scheduler = Scheduler(small_config(blocks=4, block_size=4, chunk=4, model_len=4096, policy=policy))
    scheduler.add(0, int32([5] * 14), SequenceLimits(max_tokens=100))
    ends: dict[int, FinishReason] = {}
    for _ in range(6):
        ends |= run_step(scheduler)
    assert ends == {0: FinishReason.LENGTH}
    stats = scheduler.stats()
    assert (stats.preemptions, stats.free_blocks, stats.used_slots) == (0, 4, 0)


@pytest.mark.parametrize("policy", StepPolicy)
def test_r14_a_sequence_that_lacks_room_for_its_last_chunk_waits_instead_of_looping(
    policy: StepPolicy,
) -> None:
    """It fits at admission; a neighbour's growth takes the room. It may give up its own blocks, twice at most."""
    scheduler = Scheduler(small_config(blocks=8, block_size=4, chunk=4, model_len=4096, policy=policy))
    scheduler.add(0, int32([5] * 4), SequenceLimits(max_tokens=24))
    scheduler.add(1, int32([5] * 27), SequenceLimits(max_tokens=3))
    ends: dict[int, FinishReason] = {}
    for _ in range(100):
        ends |= run_step(scheduler)
    assert ends == {0: FinishReason.LENGTH, 1: FinishReason.LENGTH}
    assert 1 <= scheduler.stats().preemptions <= 2
    assert scheduler.stats().free_blocks == 8


@pytest.mark.parametrize("in_flight", [False, True])
def test_r25_an_id_can_be_used_again_right_after_its_abort(in_flight: bool) -> None:
    scheduler = Scheduler(small_config())
    for round_number in range(20):
        scheduler.add(1, int32([3, 4]), SequenceLimits(max_tokens=2))
        plan = scheduler.plan() if in_flight else None
        assert scheduler.abort(1)
        scheduler.add(1, int32([5, 6, 7]), SequenceLimits(max_tokens=2))
        if plan is not None:
            result = scheduler.commit(int32([8]), int32([1]))
            assert result.finish.tolist() == [FinishReason.ABORT]  # the first generation's
        assert scheduler.output_tokens(1).tolist() == []
        ends = [run_step(scheduler), run_step(scheduler)]
        assert ends == [{}, {1: FinishReason.LENGTH}]
        assert scheduler.output_tokens(1).tolist() == [7, 7]
        assert not scheduler.has_unfinished(), f"left over in round {round_number}"
    assert scheduler.stats().free_blocks == 6


@pytest.mark.parametrize("policy", StepPolicy)
def test_r61_neither_prefill_nor_decode_starves(policy: StepPolicy) -> None:
    """One decode stream and a new long prompt in every step: the stream advances at least every second step."""
    scheduler = Scheduler(small_config(blocks=60, budget=8, model_len=100, policy=policy))
    scheduler.add(0, int32([5]), SequenceLimits(max_tokens=30))
    gaps = [0]
    for seq_id in range(1, 60):
        scheduler.add(seq_id, int32([5] * 20), SequenceLimits(max_tokens=1))
        plan = scheduler.plan()
        n = len(plan.sampling)
        scheduler.commit(int32([7] * n), int32([1] * n))
        gaps[-1] += 1
        if 0 in plan.seq_ids:
            gaps.append(0)
    assert len(gaps) == 31
    assert max(gaps[:30]) <= 2


def test_r62_with_capped_chunks_a_short_prompt_does_not_wait_for_long_ones() -> None:
    scheduler = Scheduler(small_config(blocks=100, budget=16, chunk=4, model_len=200))
    for seq_id in range(2):
        scheduler.add(seq_id, int32([5] * 100), SequenceLimits(max_tokens=1))
    scheduler.add(2, int32([5] * 3), SequenceLimits(max_tokens=1))
    assert run_step(scheduler) == {2: FinishReason.LENGTH}
