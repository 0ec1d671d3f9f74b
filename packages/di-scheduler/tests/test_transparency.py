"""Whole histories with a model whose tokens depend on the whole prefix: properties 21, 22, 36, 38 and 44."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from di_scheduler import FinishReason, Scheduler, SchedulerConfig, SchedulerStats, SequenceLimits, StepPolicy

from .fake_model import VOCAB, FakeModel, next_token
from .harness import int32, small_config

MODEL_LEN = 24
EOS = 3


@dataclass(frozen=True)
class Job:
    prompt: list[int]
    limits: SequenceLimits
    arrives: int  # step before which it is added
    aborted: int | None = None  # step at which it is aborted, between plan and commit when odd


def jobs(seed: int, *, aborts: bool) -> list[Job]:
    rng = random.Random(seed)
    result = []
    for _ in range(rng.randint(3, 9)):
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, MODEL_LEN - 1))]
        limits = SequenceLimits(
            max_tokens=rng.randint(1, 16), eos_token_ids=(EOS,), ignore_eos=rng.random() < 0.7
        )
        arrives = rng.randint(0, 12)
        aborted = arrives + rng.randint(0, 12) if aborts and rng.random() < 0.4 else None
        result.append(Job(prompt, limits, arrives, aborted))
    return sorted(result, key=lambda job: job.arrives)


def alone(job: Job) -> list[int]:
    """What the job generates, without any scheduler."""
    tokens = list(job.prompt)
    for _ in range(min(job.limits.max_tokens, MODEL_LEN - len(job.prompt))):
        tokens.append(next_token(tokens))
        if tokens[-1] == EOS and not job.limits.ignore_eos:
            break
    return tokens[len(job.prompt) :]


class Run:
    """Serves jobs to the end and remembers what each was given."""

    def __init__(self, config: SchedulerConfig, work: list[Job]) -> None:
        self.scheduler = Scheduler(config)
        self.model = FakeModel(config.block_size)
        self.work = work
        self.outputs: list[list[int]] = [[] for _ in work]
        self.ends: list[list[FinishReason]] = [[] for _ in work]
        # While a sequence is the oldest it is never preempted and gets a row at least every second step.
        self.step_bound = 2 * len(work) * MODEL_LEN + max(job.arrives for job in work) + 1

    def serve(self) -> SchedulerStats:
        for step in range(self.step_bound):
            self._arrivals(step)
            self._aborts(step, after_plan=False)
            plan = self.scheduler.plan()
            self._aborts(step, after_plan=True)
            tokens = self.model.run(plan)
            result = self.scheduler.commit(tokens, np.ones(len(tokens), np.int32))
            for seq_id, token, kept, finish in zip(
                result.seq_ids, tokens, result.num_committed, result.finish, strict=True
            ):
                self.outputs[seq_id] += [int(token)] * int(kept)
                if finish and not self.ends[seq_id]:
                    self.ends[seq_id].append(FinishReason(finish))
            if step > self.work[-1].arrives and not self.scheduler.has_unfinished():
                return self.scheduler.stats()
        raise AssertionError(f"unfinished after {self.step_bound} steps")

    def _arrivals(self, step: int) -> None:
        for seq_id, job in enumerate(self.work):
            if job.arrives == step:
                self.scheduler.add(seq_id, int32(job.prompt), job.limits)

    def _aborts(self, step: int, *, after_plan: bool) -> None:
        for seq_id, job in enumerate(self.work):
            if job.aborted == step and job.aborted % 2 == after_plan and self.scheduler.abort(seq_id):
                self.ends[seq_id].append(FinishReason.ABORT)


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


def check_quiescent(stats: SchedulerStats, config: SchedulerConfig) -> None:
    assert (stats.free_blocks, stats.free_slots) == (config.num_blocks - 1, config.num_slots - 1)
    assert (stats.waiting, stats.running) == (0, 0)


def test_outputs_do_not_depend_on_the_schedule() -> None:
    """21, 22, 36, 38: every pool, chunk size and policy gives what each job gives alone, in bounded steps."""
    preemptions = chunks = mixed = 0
    for seed in range(12):
        work = jobs(seed, aborts=False)
        expected = [alone(job) for job in work]
        for config in configurations():
            run = Run(config, work)
            stats = run.serve()
            assert run.outputs == expected
            assert all(len(ends) == 1 for ends in run.ends)
            check_quiescent(stats, config)
            preemptions += stats.preemptions
            chunks += stats.chunks
            mixed += stats.mixed_steps
    assert min(preemptions, chunks, mixed) > 100


def test_a_pool_that_holds_everything_never_preempts() -> None:
    """20: with room for all sequences at full length there is no reason to."""
    config = small_config(blocks=4 * MODEL_LEN, block_size=1, model_len=MODEL_LEN)
    assert sum(Run(config, jobs(seed, aborts=False)).serve().preemptions for seed in range(12)) == 0


@pytest.mark.parametrize("policy", StepPolicy)
def test_aborts_leave_neighbours_and_pools_intact(policy: StepPolicy) -> None:
    """38, 44: aborts while waiting, between chunks, in flight and decoding; the others do not notice."""
    aborted = 0
    for seed in range(60):
        config = small_config(blocks=7, budget=6, chunk=3, model_len=MODEL_LEN, policy=policy)
        work = jobs(seed, aborts=True)
        run = Run(config, work)
        stats = run.serve()
        check_quiescent(stats, config)
        for job, output, ends in zip(work, run.outputs, run.ends, strict=True):
            assert len(ends) == 1
            if ends == [FinishReason.ABORT]:
                aborted += 1
                assert output == alone(job)[: len(output)]
            else:
                assert output == alone(job)
        assert stats.aborts == sum(ends == [FinishReason.ABORT] for ends in run.ends)
    assert aborted > 50
