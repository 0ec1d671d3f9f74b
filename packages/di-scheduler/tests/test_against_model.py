"""Random histories: the native scheduler, its Python model and the properties, operation by operation."""

import random
from collections import Counter

import pytest
from di_scheduler import FinishReason, SequenceLimits, StepPolicy
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from .harness import Lockstep, small_config

TOKENS = st.integers(0, 9)  # few, so that stop ids turn up


@st.composite
def limits(draw: st.DrawFn) -> SequenceLimits:
    max_tokens = draw(st.integers(1, 12))
    return SequenceLimits(
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, min(3, max_tokens))),
        eos_token_ids=draw(st.sampled_from([(), (0,), (0, 1)])),
        stop_token_ids=draw(st.sampled_from([(), (2,), (1, 2)])),
        ignore_eos=draw(st.booleans()),
    )


class History(RuleBasedStateMachine):
    """Arrivals, aborts, failures, multi-token commits, in small pools."""

    @initialize(
        blocks=st.integers(1, 8),
        block_size=st.integers(1, 4),
        seqs=st.integers(1, 4),
        extra=st.integers(0, 8),
        chunk=st.none() | st.integers(1, 6),
        lookback=st.integers(0, 3),
        policy=st.sampled_from(StepPolicy),
    )
    def start(
        self,
        blocks: int,
        block_size: int,
        seqs: int,
        extra: int,
        chunk: int | None,
        lookback: int,
        policy: StepPolicy,
    ) -> None:
        self.pair = Lockstep(
            small_config(
                blocks=blocks + (block_size == 1),
                block_size=block_size,
                seqs=seqs,
                budget=seqs + extra,
                chunk=chunk,
                model_len=20,
                lookback=lookback,
                policy=policy,
            )
        )

    @rule(seq_id=st.integers(0, 9), size=st.integers(1, 19), token=TOKENS, limits=limits())
    def add(self, seq_id: int, size: int, token: int, limits: SequenceLimits) -> None:
        size = min(size, self.pair.model.length_limit - 1)
        if seq_id not in self.pair.seen.live:
            self.pair.add(seq_id, [(token + i) % 10 for i in range(size)], limits)

    @rule(
        seq_id=st.integers(0, 9),
        reason=st.sampled_from([FinishReason.ABORT, FinishReason.STOP_STRING, FinishReason.ERROR]),
    )
    def finish(self, seq_id: int, reason: FinishReason) -> None:
        self.pair.finish(seq_id, reason)

    @rule(data=st.data())
    def plan_or_commit(self, data: st.DataObject) -> None:
        if self.pair.plan is None:
            self.pair.make_plan()
            return
        size = len(self.pair.plan.sampling)
        offer = st.lists(TOKENS, min_size=1, max_size=3)
        rare = st.integers(0, 19).map(lambda n: n == 0)
        offers = data.draw(st.lists(offer, min_size=size, max_size=size))
        broken = data.draw(st.lists(rare, min_size=size, max_size=size))
        failed = data.draw(st.none() | st.lists(rare, min_size=size, max_size=size))
        self.pair.commit([[-1] if bad else good for bad, good in zip(broken, offers, strict=True)], failed)

    @rule(token=TOKENS, steps=st.integers(1, 6))
    def run(self, token: int, steps: int) -> None:
        """Several ordinary steps at once, so that sequences get far enough to meet their limits."""
        if self.pair.plan is not None:
            self.pair.commit([[token] for _ in self.pair.plan.sampling])
        for _ in range(steps):
            self.pair.step(lambda tokens: (token + len(tokens)) % 10)

    def teardown(self) -> None:
        """38, 44: whatever is left can be aborted, and then nothing is held."""
        if not hasattr(self, "pair"):
            return
        for seq_id in list(self.pair.seen.live):
            self.pair.finish(seq_id)
        if self.pair.plan is not None:
            self.pair.commit([[] for _ in self.pair.plan.sampling])
        stats = self.pair.scheduler.stats()
        assert (stats.used_blocks, stats.used_slots) == (0, 0)
        assert not self.pair.scheduler.has_unfinished()


TestHistory = History.TestCase
TestHistory.settings = settings(
    stateful_step_count=30,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),  # explaining takes minutes
)


class Crowd:
    """A long history under pressure: more requests than the pool holds, at every moment."""

    def __init__(self, seed: int, policy: StepPolicy) -> None:
        self.rng = rng = random.Random(seed)
        seqs = rng.randint(1, 6)
        self.pair = Lockstep(
            small_config(
                blocks=rng.randint(2, 14),
                block_size=rng.randint(1, 4),
                seqs=seqs,
                budget=seqs + rng.choice([0, 1, 4, 12]),
                chunk=rng.choice([None, None, 1, 3, 7]),
                model_len=30,
                policy=policy,
            )
        )
        self.next_id = 0

    def arrive(self) -> None:
        rng = self.rng
        size = min(rng.choice([1, 2, 5, 12, 29]), self.pair.model.length_limit - 1)
        limits = SequenceLimits(rng.choice([1, 3, 10, 28]), eos_token_ids=(0,), ignore_eos=rng.random() < 0.5)
        self.pair.add(self.next_id, [rng.randrange(1, 30) for _ in range(size)], limits)
        self.next_id += 1

    def offer(self) -> list[int]:
        count = self.rng.choice([1, 1, 1, 1, 2, 3])
        return [self.rng.randrange(-1 if self.rng.random() < 0.02 else 0, 30) for _ in range(count)]

    def step(self) -> None:
        while self.pair.model.orders < 400 and len(self.pair.seen.live) < 8:
            self.arrive()
        plan = self.pair.make_plan()
        self.maybe_end(0.05)
        failed = [self.rng.random() < 0.02 for _ in plan.sampling]
        self.pair.commit([self.offer() for _ in plan.sampling], failed)
        self.maybe_end(0.05)

    def maybe_end(self, chance: float) -> None:
        if self.pair.seen.live and self.rng.random() < chance:
            self.pair.finish(self.rng.choice(list(self.pair.seen.live)))


@pytest.mark.parametrize("policy", StepPolicy)
def test_long_histories_under_pressure(policy: StepPolicy) -> None:
    totals: Counter[str] = Counter()
    for seed in range(40):
        crowd = Crowd(seed, policy)
        for _ in range(60):
            crowd.step()
        stats = crowd.pair.scheduler.stats()
        totals.update(
            preemptions=stats.preemptions, aborts=stats.aborts, chunks=stats.chunks, mixed=stats.mixed_steps
        )
        totals.update(reason.name for request in crowd.pair.seen.ended for reason in request.finishes)
    assert min(totals["preemptions"], totals["aborts"], totals["chunks"]) > 100
    assert (totals["mixed"] > 100) == (policy is StepPolicy.MIXED)
    assert min(totals[name] for name in ("STOP", "LENGTH", "ABORT", "ERROR")) > 20
