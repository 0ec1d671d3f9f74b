"""Whole histories with a model whose tokens depend on the whole prefix: properties 21, 22, 25, 36, 38 and 44."""

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from di_scheduler import EngineKind, FinishReason, Scheduler, SchedulerConfig, SequenceLimits, StepPolicy

from .fake_model import Drafter, FakeModel
from .harness import int32, small_config
from .serving import CURVE, EOS, Fork, Job, Run, alone, check_quiescent, jobs, with_classes

MODEL_LEN = 24


def configurations() -> Iterator[SchedulerConfig]:
    for policy in StepPolicy:
        for blocks, block_size in ((6, 4), (8, 4), (24, 1), (40, 4)):
            for budget, chunk in ((4, None), (8, 3), (32, 1), (32, None)):
                yield small_config(
                    blocks=blocks,
                    block_size=block_size,
                    budget=budget,
                    chunk=chunk,
                    model_len=MODEL_LEN,
                    policy=policy,
                )


def test_outputs_do_not_depend_on_the_schedule() -> None:
    """21, 22, 36, 38: every pool, chunk size and policy gives what each job gives alone, in bounded steps."""
    totals: Counter[str] = Counter()
    for seed in range(8):
        work = jobs(seed, MODEL_LEN, aborts=False)
        for config in configurations():
            run = Run(config, work)
            stats = run.serve()
            assert run.outputs == run.expected()
            assert all(len(ends) == 1 for ends in run.ends)
            check_quiescent(stats, config)
            totals.update(preemptions=stats.preemptions, chunks=stats.chunks, mixed=stats.mixed_steps)
    assert min(totals.values()) > 100


ASYNCHRONOUS = list(itertools.product(StepPolicy, (0, 1, 3, 5), (False, True)))


@pytest.mark.parametrize("policy, drafts, costed", ASYNCHRONOUS)
def test_asynchronous_steps_change_nothing(policy: StepPolicy, drafts: int, costed: bool) -> None:
    """25: with the next step planned and computed before this one is committed, every job gets the same tokens."""
    totals: Counter[str] = Counter()
    for seed in range(5):
        work = jobs(seed, MODEL_LEN, aborts=False)
        for blocks, block_size, budget in ((7, 4, 8), (24, 1, 32), (60, 4, 12)):
            config = small_config(
                blocks=blocks,
                block_size=block_size,
                budget=budget,
                model_len=MODEL_LEN,
                drafts=drafts,
                policy=policy,
            )
            for flights in (1, 2):
                for classes in (False, True):
                    planned = with_classes(work, seed) if classes else work
                    run = Run(
                        replace(config, max_steps_in_flight=flights), planned, curve=CURVE if costed else None
                    )
                    stats = run.serve()
                    assert run.outputs == run.expected()
                    assert all(len(ends) == 1 for ends in run.ends)
                    check_quiescent(stats, config)
                    totals.update(preemptions=stats.preemptions, accepted=stats.drafts_accepted)
    assert totals["preemptions"] > 20
    assert (totals["accepted"] > 100) == (drafts > 0)


@pytest.mark.parametrize("flights", [1, 2])
@pytest.mark.parametrize("drafts", [0, 3])
def test_forks_give_what_their_prompt_gives(flights: int, drafts: int) -> None:
    """21, 39, 40: parents and children do not disturb each other, whether they share or not."""
    shared = forked = 0
    for seed in range(24):
        rng = random.Random(seed)
        work = jobs(seed, MODEL_LEN, aborts=False, most=4)
        forks = tuple(
            Fork(parent, min(len(work[parent].prompt) + rng.randint(0, 6), MODEL_LEN - 1), SequenceLimits(9))
            for parent in (rng.randrange(len(work)) for _ in range(6))
        )
        blocks, block_size = rng.choice([(14, 2), (8, 4), (30, 4)])
        config = small_config(
            blocks=blocks,
            block_size=block_size,
            seqs=6,
            model_len=MODEL_LEN,
            drafts=drafts,
            flights=flights,
        )
        run = Run(config, work, forks=forks)
        check_quiescent(run.serve(), config)
        assert run.outputs == run.expected()
        shared += run.shared
        forked += sum(bool(prompt) for prompt in run.prompts[len(work) :])
    assert forked > 40
    assert shared > 20


def test_a_pool_that_holds_everything_never_preempts() -> None:
    """20: with room for all sequences at full length there is no reason to."""
    for drafts, flights in ((0, 1), (3, 2)):
        config = small_config(
            blocks=4 * MODEL_LEN, block_size=1, model_len=MODEL_LEN, drafts=drafts, flights=flights
        )
        for seed in range(8):
            assert Run(config, jobs(seed, MODEL_LEN, aborts=False)).serve().preemptions == 0


@pytest.mark.parametrize("flights", [1, 2])
@pytest.mark.parametrize("policy", StepPolicy)
def test_aborts_leave_neighbours_and_pools_intact(policy: StepPolicy, flights: int) -> None:
    """38, 44: aborts while waiting, between chunks, in flight and decoding; the others do not notice."""
    aborted = 0
    for seed in range(60):
        config = small_config(
            blocks=7, budget=6, chunk=3, model_len=MODEL_LEN, drafts=seed % 3, flights=flights, policy=policy
        )
        work = jobs(seed, MODEL_LEN, aborts=True)
        run = Run(config, work)
        stats = run.serve()
        check_quiescent(stats, config)
        for expected, output, ends in zip(run.expected(), run.outputs, run.ends, strict=True):
            assert len(ends) == 1
            if ends == [FinishReason.ABORT]:
                aborted += 1
                assert output == expected[: len(output)]
            else:
                assert output == expected
        assert stats.aborts == sum(ends == [FinishReason.ABORT] for ends in run.ends)
    assert aborted > 50


@pytest.mark.parametrize("ok", [True, False])
def test_a_prompt_handed_over_goes_on_as_if_it_had_stayed(ok: bool) -> None:
    """21: one engine computes the prompt, another the rest; what fails to arrive is computed again there."""
    jobs_ = [Job([(i * 7 + k) % 50 for k in range(5 + 3 * i)], SequenceLimits(7), 0) for i in range(4)]
    config = small_config(blocks=40, model_len=40, drafts=3)
    first = Scheduler(replace(config, kind=EngineKind.PREFILL_ONLY))
    second = Scheduler(config)
    devices = [FakeModel(config.block_size, Drafter(3, 0.5)) for _ in range(2)]
    outputs: list[list[int]] = [[] for _ in jobs_]
    for seq_id, job in enumerate(jobs_):
        first.add(seq_id, int32(job.prompt), job.limits)
    while first.stats().prompted < len(jobs_):
        advance(first, devices[0], outputs)
    assert first.plan().num_seqs == 0
    for seq_id, job in enumerate(jobs_):
        tokens = job.prompt + outputs[seq_id]
        away = first.begin_transfer(seq_id, 10.0)
        back = second.import_sequence(seq_id, int32(tokens), len(job.prompt), job.limits, 10.0)
        assert back is not None
        source, target = first.describe(seq_id), second.describe(seq_id)
        content = devices[0].export(source.block_table.tolist(), source.slot, len(tokens) - 1)
        if ok:
            devices[1].receive(target.block_table.tolist(), target.slot, content)
        assert second.end_transfer(back, ok)
        assert first.end_transfer(away)
    check_quiescent(first.stats(), config)
    while second.has_unfinished():
        advance(second, devices[1], outputs)
    check_quiescent(second.stats(), config)
    assert outputs == [alone(job.prompt, job.limits, 40) for job in jobs_]


def advance(scheduler: Scheduler, device: FakeModel, outputs: list[list[int]]) -> None:
    plan = scheduler.plan()
    results = device.run(plan)
    kept = scheduler.commit(results.tokens, results.counts, None, results.drafts, results.confidences)
    at = 0
    for seq_id, count, taken in zip(kept.seq_ids.tolist(), results.counts, kept.num_committed, strict=True):
        outputs[seq_id] += results.tokens[at : at + taken].tolist()
        at += int(count)


def test_the_jobs_meet_their_stop_id() -> None:
    """The histories above exercise what they claim to."""
    found = [
        alone(job.prompt, job.limits, MODEL_LEN)
        for seed in range(12)
        for job in jobs(seed, MODEL_LEN, aborts=False)
        if not job.limits.ignore_eos
    ]
    assert sum(EOS in output for output in found) > 1
