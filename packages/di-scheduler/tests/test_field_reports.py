"""Faults that users of other engines met, replayed (field reports R13, R14, R16, R17, R25, R55, R61, R62)."""

from collections import deque

import numpy as np
import pytest
from di_scheduler import (
    AdmissionError,
    EngineKind,
    FinishReason,
    Scheduler,
    SequenceLimits,
    SequenceOptions,
    StepPlan,
    StepPolicy,
)

from .harness import int32, small_config
from .serving import Job, Run, check_quiescent


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


def prompted(count: int) -> Scheduler:
    """A prefill-only engine whose sequences 0 to `count` - 1 wait to be fetched."""
    scheduler = Scheduler(small_config(blocks=2 * count, seqs=count, budget=64, kind=EngineKind.PREFILL_ONLY))
    for seq_id in range(count):
        scheduler.add(seq_id, int32([5] * 6), SequenceLimits(max_tokens=8))
    while scheduler.stats().prompted < count:
        run_step(scheduler)
    return scheduler


def test_r16_blocks_come_back_when_nobody_ever_reports_the_end_of_a_transfer() -> None:
    """Sent and received: the peer dies, the requests are aborted, the leases run out; late reports find nothing."""
    sender, receiver = prompted(10), Scheduler(small_config(blocks=20, seqs=10, kind=EngineKind.DECODE_ONLY))
    sent = [sender.begin_transfer(seq_id, expires=50.0 + seq_id) for seq_id in range(10)]
    received = [
        receiver.import_sequence(i, int32([5] * 6 + [7]), 6, SequenceLimits(8), expires=50.0 + i)
        for i in range(10)
    ]
    for scheduler, tickets in ((sender, sent), (receiver, received)):
        for seq_id in range(0, 10, 2):
            assert scheduler.abort(seq_id)
        assert scheduler.stats().free_blocks == 0, "given away while the peer may still read or write"
        assert scheduler.plan(now=49.0).num_seqs == 0
        assert scheduler.stats().free_blocks == 0
        assert scheduler.plan(now=54.0).expired.tolist() == [1, 3]
        assert scheduler.stats().free_blocks == 2 * 5
        assert scheduler.plan(now=100.0).expired.tolist() == [5, 7, 9]
        check_quiescent(scheduler.stats(), scheduler.config)
        assert not scheduler.has_unfinished()
        assert not any(
            scheduler.end_transfer(ticket, ok) for ticket in tickets if ticket for ok in (True, False)
        )


def test_r17_late_double_and_unknown_transfer_events_are_ignored() -> None:
    scheduler = prompted(3)
    first, second = (scheduler.begin_transfer(seq_id, expires=10.0) for seq_id in (0, 1))
    scheduler.abort(0)
    scheduler.add(0, int32([9] * 3), SequenceLimits(max_tokens=4))  # the id lives again
    assert scheduler.end_transfer(first)
    assert not scheduler.end_transfer(first)
    assert scheduler.describe(0).finish == FinishReason.NONE
    assert scheduler.end_transfer(second, ok=False)
    assert not scheduler.end_transfer(second)
    assert not scheduler.end_transfer(12345)
    while scheduler.stats().prompted < 2:
        run_step(scheduler)
    for seq_id in (0, 2):
        assert scheduler.end_transfer(scheduler.begin_transfer(seq_id, expires=10.0))
    check_quiescent(scheduler.stats(), scheduler.config)


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


def test_r25_with_two_steps_in_flight() -> None:
    """Three generations of one id at once: two in flight, one waiting. Each is told its own end."""
    scheduler = Scheduler(small_config(blocks=9, flights=2))
    plans = []
    for _ in range(2):
        scheduler.add(1, int32([3, 4]), SequenceLimits(max_tokens=2))
        plans.append(scheduler.plan())
        assert scheduler.abort(1)
    scheduler.add(1, int32([5, 6, 7]), SequenceLimits(max_tokens=1))
    for plan in plans:
        assert plan.seq_ids.tolist() == [1]
        assert scheduler.commit(int32([8]), int32([1])).finish.tolist() == [FinishReason.ABORT]
        assert scheduler.output_tokens(1).tolist() == []
    assert run_step(scheduler) == {1: FinishReason.LENGTH}
    check_quiescent(scheduler.stats(), scheduler.config)


@pytest.mark.parametrize("drafts", [0, 1, 3, 5])
@pytest.mark.parametrize("policy", StepPolicy)
def test_r55_preempted_in_flight_no_token_is_lost_or_doubled(policy: StepPolicy, drafts: int) -> None:
    """Four growing sequences in a pool for two, with two steps in flight, so that victims have rows on the device."""
    work = [Job([10 * i + k for k in range(6)], SequenceLimits(20), arrives=i) for i in range(4)]
    outputs = []
    in_flight = 0
    for blocks in (13, 100):
        config = small_config(blocks=blocks, budget=32, drafts=drafts, flights=2, policy=policy)
        run = Run(config, work)
        stats = run.serve()
        check_quiescent(stats, config)
        outputs.append(run.outputs)
        assert [len(output) for output in run.outputs] == [20] * 4
        assert stats.preemptions <= 12, "as often as each may lose its cache while older ones grow"
        in_flight += stats.preemptions_in_flight
    assert outputs[0] == outputs[1] == run.expected()
    assert in_flight >= 2


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


class Pipeline:
    """Steps that yield one token and as many drafts as can be for everybody; no draft is accepted."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.open: deque[StepPlan] = deque()

    def step(self) -> StepPlan:
        """Plan, and commit the oldest plan when as many are open as may be."""
        plan = self.scheduler.plan()
        self.open.append(plan)
        if len(self.open) == self.scheduler.config.max_steps_in_flight:
            n = len(self.open.popleft().sampling)
            tokens, counts = int32([7] * n), int32([1] * n)
            drafts = np.full((n, self.scheduler.config.max_draft_tokens), 6, np.int32)
            self.open = deque(later.resolve(tokens, counts, drafts) for later in self.open)
            self.scheduler.commit(tokens, counts, drafts=drafts)
        return plan


@pytest.mark.parametrize("flights", [1, 2])
@pytest.mark.parametrize("policy", StepPolicy)
def test_r61_streams_that_verify_drafts_do_not_starve_either(policy: StepPolicy, flights: int) -> None:
    """Three streams with drafts and endless long prompts: every stream gets its row at least every second step."""
    config = small_config(blocks=200, budget=10, model_len=400, drafts=2, flights=flights, policy=policy)
    pipeline = Pipeline(Scheduler(config))
    for seq_id in range(3):
        pipeline.scheduler.add(seq_id, int32([5]), SequenceLimits(max_tokens=300))
    waits = dict.fromkeys(range(3), 0)
    for step in range(80):
        pipeline.scheduler.add(10 + step, int32([5] * 20), SequenceLimits(max_tokens=1))
        plan = pipeline.step()
        waits = {stream: 0 if stream in plan.seq_ids else wait + 1 for stream, wait in waits.items()}
        assert max(waits.values()) < 2
    assert pipeline.scheduler.stats().num_first_tokens > 6, "one row a step at least is for prompts"


@pytest.mark.parametrize("flights", [1, 2])
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("policy", StepPolicy)
def test_r62_endless_streams_do_not_keep_a_prompt_waiting(
    policy: StepPolicy, drafts: int, flights: int
) -> None:
    """As many streams as leave one slot, with as many draft rows as there are: a prompt moves every second step."""
    config = small_config(blocks=300, budget=8, model_len=400, drafts=drafts, flights=flights, policy=policy)
    pipeline = Pipeline(Scheduler(config))
    for seq_id in range(3):
        pipeline.scheduler.add(seq_id, int32([5]), SequenceLimits(max_tokens=390))
    for _ in range(10):
        pipeline.step()
    pipeline.scheduler.add(9, int32([5] * 6), SequenceLimits(max_tokens=1))
    moves = [9 in pipeline.step().seq_ids for _ in range(12)]
    assert True in moves[:2]
    computed = np.flatnonzero(moves)
    assert np.diff(computed).max(initial=0) <= 2
    assert pipeline.scheduler.stats().num_first_tokens == 4


def test_an_image_moves_beside_endless_streams() -> None:
    """Together with R62: the largest image that is accepted fits beside all decodes with all their drafts."""
    config = small_config(blocks=300, budget=20, model_len=400, drafts=3)
    pipeline = Pipeline(Scheduler(config))
    for seq_id in range(3):
        pipeline.scheduler.add(seq_id, int32([5]), SequenceLimits(max_tokens=390))
    for _ in range(10):
        pipeline.step()
    largest = config.max_num_batched_tokens - 3 * 4
    for tokens in (largest + 1, largest):
        options = SequenceOptions(images=((1, tokens),))
        prompt = int32([5] * (tokens + 2))
        if tokens > largest:
            with pytest.raises(AdmissionError, match="image") as caught:
                pipeline.scheduler.add(9, prompt, SequenceLimits(1), options=options)
            assert caught.value.reason == "image_too_large"
        else:
            pipeline.scheduler.add(9, prompt, SequenceLimits(1), options=options)
    pieces = [(plan.q_start[-1], plan.q_len[-1]) for plan in (pipeline.step() for _ in range(3))]
    assert pieces == [(0, 1), (1, largest), (largest + 1, 1)]


def test_r62_with_capped_chunks_a_short_prompt_does_not_wait_for_long_ones() -> None:
    scheduler = Scheduler(small_config(blocks=100, budget=16, chunk=4, model_len=200))
    for seq_id in range(2):
        scheduler.add(seq_id, int32([5] * 100), SequenceLimits(max_tokens=1))
    scheduler.add(2, int32([5] * 3), SequenceLimits(max_tokens=1))
    assert run_step(scheduler) == {2: FinishReason.LENGTH}
