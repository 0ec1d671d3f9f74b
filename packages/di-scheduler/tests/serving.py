"""Serves scripted jobs with a scheduler and a fake device, asynchronously or not, and remembers what each was given."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from di_scheduler import (
    FinishReason,
    Scheduler,
    SchedulerConfig,
    SchedulerStats,
    SequenceLimits,
    SequenceOptions,
    StepPlan,
)
from di_scheduler.cost_curve import CostCurve
from di_scheduler.speculation import DraftBudget

from .fake_model import VOCAB, DeviceResults, Drafter, FakeModel, next_token
from .harness import int32

EOS = 3
PLAIN = SequenceOptions()
CURVE = CostCurve((1, 257), (2.5, 2.5 + 256 * 0.5), stepped=False)


@dataclass(frozen=True)
class Job:
    prompt: list[int]
    limits: SequenceLimits
    arrives: int  # step before which it is added
    aborted: int | None = None  # step at which it is aborted, between plan and commit when odd
    options: SequenceOptions = PLAIN
    ready_at: int | None = None


@dataclass(frozen=True)
class Fork:
    parent: int
    tokens: int  # of the parent, as soon as it has them
    limits: SequenceLimits


def jobs(seed: int, model_len: int, *, aborts: bool, most: int = 9) -> list[Job]:
    rng = random.Random(seed)
    result = []
    for _ in range(rng.randint(3, most)):
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, model_len - 1))]
        limits = SequenceLimits(
            max_tokens=rng.randint(1, 16), eos_token_ids=(EOS,), ignore_eos=rng.random() < 0.7
        )
        arrives = rng.randint(0, 12)
        aborted = arrives + rng.randint(0, 12) if aborts and rng.random() < 0.4 else None
        result.append(Job(prompt, limits, arrives, aborted))
    return sorted(result, key=lambda job: job.arrives)


def with_classes(work: list[Job], seed: int) -> list[Job]:
    """The same jobs with priorities, users, weights, and some that have to wait for something."""
    rng = random.Random(seed)
    changed = []
    for job in work:
        ready = rng.random() < 0.8
        options = SequenceOptions(
            priority=rng.randint(0, 2), user=rng.randint(0, 2), weight=rng.choice([1.0, 2.0]), ready=ready
        )
        changed.append(
            replace(job, options=options, ready_at=None if ready else job.arrives + rng.randint(1, 9))
        )
    return changed


def alone(prompt: list[int], limits: SequenceLimits, model_len: int) -> list[int]:
    """What a prompt generates, without any scheduler."""
    tokens = list(prompt)
    for _ in range(min(limits.max_tokens, model_len - len(prompt))):
        tokens.append(next_token(tokens))
        if tokens[-1] in limits.eos_token_ids and not limits.ignore_eos:
            break
    return tokens[len(prompt) :]


class Run:
    """Serves jobs to the end."""

    def __init__(
        self,
        config: SchedulerConfig,
        work: list[Job],
        *,
        forks: tuple[Fork, ...] = (),
        accuracy: float = 0.7,
        curve: CostCurve | None = None,
    ) -> None:
        self.config = config
        self.scheduler = Scheduler(config)
        self.scheduler.set_step_cost(None if curve is None else DraftBudget(curve))
        self.model = FakeModel(config.block_size, Drafter(config.max_draft_tokens, accuracy))
        self.work = work
        self.prompts = [list(job.prompt) for job in work] + [[] for _ in forks]
        self.limits = [job.limits for job in work] + [fork.limits for fork in forks]
        self.outputs: list[list[int]] = [[] for _ in self.prompts]
        self.ends: list[list[FinishReason]] = [[] for _ in self.prompts]
        self.forks = dict(enumerate(forks, start=len(work)))  # by id, those still to come
        self.shared = 0
        self.open: list[tuple[StepPlan, DeviceResults]] = []  # (resolved plan, its results), oldest first
        self.marked = 0
        # While a sequence is the oldest it is never preempted and gets a row at least every second step.
        total = len(self.prompts) * config.max_model_len
        self.step_bound = 3 * total + max(job.arrives for job in work) + 12

    def serve(self, watch: Callable[["Run"], None] | None = None) -> SchedulerStats:
        for step in range(self.step_bound):
            self._arrivals(step)
            self._forks(step)
            self._aborts(step, after_plan=False)
            planned = len(self.open) < self.config.max_steps_in_flight and self._plan(step)
            self._aborts(step, after_plan=True)
            if self.open and (not planned or len(self.open) == self.config.max_steps_in_flight):
                self._commit(step)
            if watch is not None:
                watch(self)
            if step > self.work[-1].arrives and not self.scheduler.has_unfinished():
                return self.scheduler.stats()
        raise AssertionError(f"unfinished after {self.step_bound} steps")

    def _plan(self, step: int) -> bool:
        """Plan a step and let the device compute it, before what the step before gave is committed."""
        plan = self.scheduler.plan(float(step))
        if plan.num_seqs == 0:
            return False
        if self.open:
            last = self.open[-1][1]
            plan = plan.resolve(last.tokens, last.counts, last.drafts, last.confidences)
        self.open.append((plan, self.model.run(plan)))
        return True

    def _commit(self, step: int) -> None:
        plan, results = self.open.pop(0)
        kept = self.scheduler.commit(
            results.tokens, results.counts, None, results.drafts, results.confidences, now=float(step)
        )
        assert kept.seq_ids.tolist() == plan.seq_ids[plan.sampling].tolist()
        at = 0
        for seq_id, count, taken, finish in zip(
            kept.seq_ids.tolist(), results.counts.tolist(), kept.num_committed, kept.finish, strict=True
        ):
            self.outputs[seq_id] += results.tokens[at : at + int(taken)].tolist()
            at += count
            if finish and not self.ends[seq_id]:
                self.ends[seq_id].append(FinishReason(finish))

    def _arrivals(self, step: int) -> None:
        for seq_id, job in enumerate(self.work):
            if job.arrives == step:
                self.scheduler.add(seq_id, int32(job.prompt), job.limits, float(step), job.options)
            if job.ready_at == step:
                self.scheduler.set_ready(seq_id)

    def _forks(self, step: int) -> None:
        """A parent shares its cache when it has no rows in flight, so what is open is committed first."""
        for seq_id, fork in list(self.forks.items()):
            tokens = self.prompts[fork.parent] + self.outputs[fork.parent]
            if self.ends[fork.parent]:
                del self.forks[seq_id]  # it ended before it had them, or while nobody looked
            elif self.work[fork.parent].arrives <= step and len(tokens) >= fork.tokens:
                while self.open:
                    self._commit(step)
                del self.forks[seq_id]
                if self.ends[fork.parent]:
                    continue
                self.prompts[seq_id] = tokens[: fork.tokens]
                self.shared += self.scheduler.fork(fork.parent, seq_id, fork.tokens, fork.limits)

    def _aborts(self, step: int, *, after_plan: bool) -> None:
        for seq_id, job in enumerate(self.work):
            if job.aborted == step and job.aborted % 2 == after_plan and self.scheduler.abort(seq_id):
                self.ends[seq_id].append(FinishReason.ABORT)

    def expected(self) -> list[list[int]]:
        """Of those that were added."""
        return [
            alone(prompt, limits, self.config.max_model_len) if prompt else []
            for prompt, limits in zip(self.prompts, self.limits, strict=True)
        ]


def check_quiescent(stats: SchedulerStats, config: SchedulerConfig) -> None:
    assert (stats.free_blocks, stats.free_slots) == (config.num_blocks - 1, config.num_slots - 1)
    assert (stats.waiting, stats.running, stats.prompted, stats.receiving) == (0, 0, 0, 0)
