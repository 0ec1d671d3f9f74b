"""Random histories: the native scheduler, its Python model and the properties, operation by operation."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from di_scheduler import EngineKind, StepPolicy
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from .histories import History, random_config

SEEDS = st.integers(0, 2**24)


class Machine(RuleBasedStateMachine):
    """Everything a caller may do, in any order; details come from one seed an operation."""

    history: History | None = None

    @initialize(seed=SEEDS)
    def start(self, seed: int) -> None:
        self.history = History(random_config(random.Random(seed)))

    def happen(self, name: str, seed: int) -> None:
        history, self.history = self.history, None  # after an error there is nothing to close in order
        assert history is not None
        getattr(history, name)(random.Random(seed))
        self.history = history

    @rule(seed=SEEDS)
    def add(self, seed: int) -> None:
        self.happen("add", seed)

    @rule(seed=SEEDS)
    def fork(self, seed: int) -> None:
        self.happen("fork", seed)

    @rule(seed=SEEDS)
    def finish(self, seed: int) -> None:
        self.happen("finish", seed)

    @rule(seed=SEEDS)
    def set_ready(self, seed: int) -> None:
        self.happen("set_ready", seed)

    @rule(seed=SEEDS)
    def hand_over(self, seed: int) -> None:
        self.happen("hand_over", seed)

    @rule(seed=SEEDS)
    def receive(self, seed: int) -> None:
        self.happen("receive", seed)

    @rule(seed=SEEDS)
    def pass_time(self, seed: int) -> None:
        self.happen("pass_time", seed)

    @rule(seed=SEEDS)
    def set_cost(self, seed: int) -> None:
        self.happen("set_cost", seed)

    @rule(seed=SEEDS)
    def plan(self, seed: int) -> None:
        self.happen("plan", seed)

    @rule(seed=SEEDS)
    def plan_one_kind(self, seed: int) -> None:
        self.happen("plan_one_kind", seed)

    @rule(seed=SEEDS)
    def commit(self, seed: int) -> None:
        self.happen("commit", seed)

    @rule(seed=SEEDS)
    def run(self, seed: int) -> None:
        self.happen("run", seed)

    def teardown(self) -> None:
        if self.history is not None:
            self.history.close()


TestHistory = pytest.mark.timeout(3600)(Machine.TestCase)
TestHistory.settings = settings(
    max_examples=max(200, settings().max_examples),
    stateful_step_count=200,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),  # explaining takes minutes
)

MIX = ["add"] * 6 + ["plan"] * 14 + ["commit"] * 3 + ["fork"] * 3 + ["finish", "hand_over", "pass_time"] * 2
MIX += ["receive", "set_ready", "set_cost", "plan_one_kind"]

COUNTED = ("preemptions", "preemptions_in_flight", "aborts", "expirations", "chunks")
EXPECTED = {
    EngineKind.NORMAL: ("preemptions", "aborts", "expirations", "chunks", "shared", "received", "in flight"),
    EngineKind.PREFILL_ONLY: ("preemptions", "aborts", "expirations", "chunks", "sent", "transferred"),
    EngineKind.DECODE_ONLY: (
        "preemptions",
        "aborts",
        "expirations",
        "received",
        "in flight",
        "preemptions_in_flight",
    ),
}


@pytest.mark.parametrize("kind", EngineKind, ids=[kind.name for kind in EngineKind])
@pytest.mark.parametrize("policy", StepPolicy, ids=[policy.name for policy in StepPolicy])
def test_long_histories_under_pressure(kind: EngineKind, policy: StepPolicy) -> None:
    """More requests than the pool holds at every moment; everything that can happen does, often."""
    totals: Counter[str] = Counter()
    for seed in range(16):
        rng = random.Random(seed)
        history = History(replace(random_config(rng, kind), policy=policy), crowd=12)
        for _ in range(250):
            getattr(history, rng.choice(MIX))(rng)
        stats = history.pair.scheduler.stats()
        totals.update(history.events)
        totals.update({name: getattr(stats, name) for name in COUNTED})
        history.close()
    assert min(totals[name] for name in EXPECTED[kind]) >= 5, totals
