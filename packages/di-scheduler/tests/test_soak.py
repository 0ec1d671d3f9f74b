"""Many short requests in a small pool, with everything that can go wrong: at the end nothing is held or forgotten."""

import os
import random
from collections import Counter, deque
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from di_scheduler import (
    FinishReason,
    Scheduler,
    SchedulerConfig,
    SequenceLimits,
    SequenceOptions,
    StepPlan,
    StepPolicy,
)
from numpy.typing import NDArray

from .serving import check_quiescent

IDS = 128  # recycled all the time
DRAFTS = 2
VOCAB = 60
CONFIG = SchedulerConfig(
    num_blocks=121,
    num_slots=34,
    block_size=4,
    max_num_seqs=32,
    max_num_batched_tokens=128,
    max_chunk_tokens=24,
    max_model_len=64,
    max_draft_tokens=DRAFTS,
    max_steps_in_flight=2,
    chunk_align=2,
    watermark=0.05,
    max_overtakes=8,
)
LIMITS = [SequenceLimits(n, eos_token_ids=(0,), stop_token_ids=(1,)) for n in (1, 2, 4, 8, 16)]
PROMPTS = [np.full(n, 7, np.int32) for n in (1, 2, 5, 11, 23, 40)]
MEGABYTE = 2**20


class Soak:
    """A service with a million customers and a clock of steps."""

    def __init__(self, requests: int, policy: StepPolicy) -> None:
        self.scheduler = Scheduler(replace(CONFIG, policy=policy))
        self.requests = requests
        self.rng = random.Random(1)
        self.numbers = np.random.default_rng(1)
        self.generation = np.zeros(IDS, np.int64)  # of each id
        self.live: set[int] = set()
        self.came = 0
        self.now = 0.0
        self.ends: Counter[FinishReason] = Counter()
        self.unready: deque[int] = deque()
        self.tickets: deque[int] = deque()
        self.open: deque[tuple[StepPlan, NDArray[np.int64], Results]] = deque()
        self.kept = 0

    def run(self) -> None:
        while self.came < self.requests:
            self.turn()

    def drain(self) -> None:
        """Let everybody finish whom nothing keeps waiting."""
        for _ in range(10_000):
            if not self.scheduler.has_unfinished():
                return
            self.release_some(everyone=True)
            self.step()
        raise AssertionError("unfinished after 10,000 more steps")

    def turn(self) -> None:
        for _ in range(self.rng.randint(0, 8)):
            self.arrive()
        self.release_some(everyone=False)
        if self.rng.random() < 0.2:
            self.end(self.rng.randrange(IDS))
        self.step()

    # What customers do.

    def arrive(self) -> None:
        seq_id = self.rng.randrange(IDS)
        if seq_id in self.live or self.came == self.requests:
            return
        chance, limits, prompt = self.rng.random(), self.rng.choice(LIMITS), self.rng.choice(PROMPTS)
        if chance < 0.05:
            self.receive(seq_id, limits, prompt)
            return
        if chance < 0.1 and self.live:
            parent = self.rng.choice(list(self.live))
            tokens = self.scheduler.describe(parent).length
            self.scheduler.fork(
                parent, seq_id, self.rng.randint(max(1, tokens - 2), tokens), limits, self.now
            )
        else:
            self.scheduler.add(seq_id, prompt, limits, self.now, self.options(seq_id))
        self.enter(seq_id)

    def options(self, seq_id: int) -> SequenceOptions:
        rng = self.rng
        ready = rng.random() < 0.95
        if not ready:
            self.unready.append(seq_id)
        return SequenceOptions(
            priority=rng.randint(0, 2),
            user=rng.randint(0, 1_000_000),
            weight=rng.choice((0.3, 1.0, 2.5)),
            ready=ready,
            deadline=self.now + rng.randint(1, 200) if rng.random() < 0.1 else None,
        )

    def receive(self, seq_id: int, limits: SequenceLimits, prompt: NDArray[np.int32]) -> None:
        if limits.max_tokens == 1:
            return
        tokens = np.append(prompt, np.int32(9))
        ticket = self.scheduler.import_sequence(seq_id, tokens, len(prompt), limits, self.now + 20, self.now)
        if ticket is not None:
            self.enter(seq_id)
            self.tickets.append(ticket)

    def enter(self, seq_id: int) -> None:
        self.live.add(seq_id)
        self.generation[seq_id] += 1
        self.came += 1

    def end(self, seq_id: int) -> None:
        if self.scheduler.abort(seq_id):
            self.ended(seq_id, FinishReason.ABORT)

    def ended(self, seq_id: int, reason: FinishReason) -> None:
        self.live.remove(seq_id)
        self.ends[reason] += 1

    def release_some(self, *, everyone: bool) -> None:
        """Grammars are compiled, transfers end or are forgotten until their lease is over."""
        while self.unready and (everyone or len(self.unready) > 10):
            self.scheduler.set_ready(self.unready.popleft())
        while self.tickets and (everyone or len(self.tickets) > 4):
            ticket = self.tickets.popleft()
            if self.rng.random() < 0.8:
                self.scheduler.end_transfer(ticket, self.rng.random() < 0.8)

    # What the engine does.

    def step(self) -> None:
        self.now += 1.0
        plan = self.scheduler.plan(self.now)
        for seq_id in plan.expired.tolist():
            self.ended(seq_id, FinishReason.DEADLINE)
        planned_for = self.generation.copy()
        if plan.num_seqs:
            if self.open:
                last = self.open[-1][2]
                plan = plan.resolve(last.tokens, last.counts, last.drafts)
            self.open.append((plan, planned_for, Results(self.numbers, plan)))
        if self.open and (not plan.num_seqs or len(self.open) == 2):
            self.commit()

    def commit(self) -> None:
        _, planned_for, results = self.open.popleft()
        done = self.scheduler.commit(
            results.tokens, results.counts, results.failed, results.drafts, now=self.now
        )
        assert (done.num_committed <= results.counts).all()
        self.kept += int(done.num_committed.sum())
        for i in np.flatnonzero(done.finish):
            seq_id = int(done.seq_ids[i])
            if seq_id in self.live and planned_for[seq_id] == self.generation[seq_id]:
                self.ended(seq_id, FinishReason(done.finish[i]))


class Results:
    """Random tokens for a plan, rarely what no healthy device gives."""

    def __init__(self, numbers: np.random.Generator, plan: StepPlan) -> None:
        rows = np.where(plan.decodes, plan.q_len, 1)[plan.sampling]
        self.counts = numbers.integers(1, rows + 1, dtype=np.int32)
        self.failed = numbers.random(len(rows)) < 0.001
        if len(rows) and numbers.random() < 0.01:
            self.counts[numbers.integers(len(rows))] = numbers.choice([0, 9])
        self.tokens = numbers.integers(0, VOCAB, int(self.counts.sum()), dtype=np.int32)
        if len(self.tokens) and numbers.random() < 0.01:
            self.tokens[numbers.integers(len(self.tokens))] = -1
        self.drafts = numbers.integers(-1, VOCAB, (len(rows), DRAFTS), dtype=np.int32)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory_says_something() -> bool:
    """Not where it cannot be asked for, nor where a sanitizer keeps what is freed."""
    maps = Path("/proc/self/maps")
    return maps.exists() and "libasan" not in maps.read_text()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("policy", StepPolicy)
def test_everything_comes_back(policy: StepPolicy, nightly: bool) -> None:
    """38, 44: every request ends once, every block and slot is free, and memory stays as it was after warming up."""
    requests = 500_000 if nightly else 10_000
    soak = Soak(requests, policy)
    soak.requests = requests // 10
    soak.run()
    measured = memory_says_something()
    before = resident_bytes() if measured else 0
    soak.requests = requests
    soak.run()
    after = resident_bytes() if measured else 0
    soak.drain()
    stats = soak.scheduler.stats()
    check_quiescent(stats, CONFIG)
    assert sum(soak.ends.values()) == soak.came == requests
    assert soak.live == set()
    assert stats.tokens_committed == soak.kept
    assert stats.aborts == soak.ends[FinishReason.ABORT]
    few = requests // 1000
    assert min(soak.ends[r] for r in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT)) > few
    assert min(soak.ends[r] for r in (FinishReason.ERROR, FinishReason.DEADLINE)) > few
    assert min(stats.preemptions, stats.preemptions_in_flight, stats.drafts_accepted) > few
    assert after - before < 4 * MEGABYTE
