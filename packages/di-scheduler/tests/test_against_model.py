"""Random histories: the native scheduler, its Python model and the properties, operation by operation."""

from di_scheduler import FinishReason, SequenceLimits, StepPolicy
from hypothesis import settings
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
TestHistory.settings = settings(stateful_step_count=30)
