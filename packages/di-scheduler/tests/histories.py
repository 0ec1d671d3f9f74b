"""Random operations on a `Lockstep`: whatever a caller may do, with what it depends on drawn from one generator."""

import random
from collections import Counter
from dataclasses import replace

from di_scheduler import (
    EngineKind,
    FinishReason,
    SchedulerConfig,
    SequenceLimits,
    SequenceOptions,
    SequenceState,
    StepKind,
    StepPolicy,
)
from di_scheduler.cost_curve import CostCurve

from .harness import Lockstep
from .model_state import Results
from .observation import Rows
from .properties import length_limit
from .watched import Watched

VOCAB = 10  # few, so that stop ids turn up
CONFIDENCES = (1.0, 0.75, 0.5, 0.25, 0.0)  # their products are exact in float32
WEIGHTS = (1.0, 1.0, 2.0, 0.5, 4.0)  # so is everything divided by them


def random_config(rng: random.Random, kind: EngineKind | None = None) -> SchedulerConfig:
    """Small pools, and every setting that plays a part in planning."""
    seqs, size = rng.randint(1, 5), rng.randint(1, 4)
    align = rng.choice([1, 1, 1, 2, 4])
    kinds = [EngineKind.NORMAL] * 5 + [EngineKind.PREFILL_ONLY, EngineKind.DECODE_ONLY]
    return SchedulerConfig(
        num_blocks=1 + max(2, rng.randint(6, 30) // size),
        num_slots=seqs + 1 + rng.choice([0, 0, 3]),
        block_size=size,
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs - 1 + align + rng.choice([0, 1, 4, 12, 24]),
        max_chunk_tokens=rng.choice([None, None, align, align + 2, 9]),
        max_model_len=rng.choice([12, 20, 32]),
        max_draft_tokens=rng.choice([0, 0, 1, 3, 5]),
        max_steps_in_flight=rng.choice([1, 2, 2]),
        max_step_context=rng.choice([None, None, 8, 30]),
        chunk_align=align,
        watermark=rng.choice([0.0, 0.0, 0.1, 0.3]),
        max_overtakes=rng.choice([0, 1, 3, 64]),
        lookback=rng.randint(0, 3),
        num_params=rng.randint(0, 2),
        policy=rng.choice(list(StepPolicy)),
        kind=rng.choice(kinds) if kind is None else kind,
    )


def random_limits(rng: random.Random) -> SequenceLimits:
    max_tokens = rng.choice([1, 2, 4, 8, 14])
    return SequenceLimits(
        max_tokens=max_tokens,
        min_tokens=rng.randint(0, min(3, max_tokens)),
        eos_token_ids=rng.choice([(), (0,), (0, 1)]),
        stop_token_ids=rng.choice([(), (), (2,), (1, 2)]),
        ignore_eos=rng.random() < 0.5,
    )


class History:
    """One pair of schedulers and a clock. Each method is one thing that may happen."""

    def __init__(self, config: SchedulerConfig, pair: Watched | None = None, *, crowd: int = 8) -> None:
        self.config = config
        self.pair = pair or Lockstep(config)
        self.now = 0.0
        self.crowd = crowd
        self.events: Counter[str] = Counter()

    def options(self, rng: random.Random, prompt_len: int) -> SequenceOptions:
        plain = SequenceOptions(params=tuple(float(rng.randint(0, 9)) for _ in range(self.config.num_params)))
        if rng.random() < 0.3:
            return plain
        images = self.images(rng, prompt_len) if rng.random() < 0.3 else ()
        places = [
            place
            for place in range(1, prompt_len + 1)
            if not any(first < place < first + tokens for first, tokens in images)
        ]
        checkpoints = rng.sample(places, min(len(places), rng.choice([0, 0, 1, 2])))
        return replace(
            plain,
            priority=rng.choice([0, 0, 0, 1, 2]),
            user=rng.choice([0, 0, 1, 2]),
            weight=rng.choice(WEIGHTS),
            ready=rng.random() < 0.85,
            deadline=self.now + rng.randint(0, 30) if rng.random() < 0.1 else None,
            checkpoints=tuple(sorted(checkpoints)),
            images=images,
        )

    def images(self, rng: random.Random, prompt_len: int) -> tuple[tuple[int, int], ...]:
        config, align = self.config, self.config.chunk_align
        beside = config.max_num_batched_tokens - (config.max_num_seqs - 1) * (1 + config.max_draft_tokens)
        largest = min(config.max_chunk_tokens or beside, beside) // align * align
        found: list[tuple[int, int]] = []
        at = 0
        while largest > 0 and (at := at + rng.randint(0, 3)) < prompt_len and len(found) < 2:
            tokens = rng.randint(1, min(largest, prompt_len - at))
            found.append((at, tokens))
            at += tokens
        return tuple(found)

    def free_id(self, rng: random.Random) -> int | None:
        free = [seq_id for seq_id in range(self.crowd) if seq_id not in self.pair.seen.live]
        return rng.choice(free) if free else None

    def tokens(self, rng: random.Random, count: int) -> list[int]:
        return [rng.randrange(VOCAB) for _ in range(count)]

    # What may happen.

    def add(self, rng: random.Random) -> None:
        seq_id = self.free_id(rng)
        if seq_id is None or self.config.kind is EngineKind.DECODE_ONLY:
            return self.receive(rng)
        limit = length_limit(self.config)
        size = min(rng.choice([1, 2, 5, 9, 14, 30, limit - 3]), limit - 1)
        if size < 1:
            return None
        self.pair.add(
            seq_id, self.tokens(rng, size), random_limits(rng), self.now, options=self.options(rng, size)
        )
        return None

    def fork(self, rng: random.Random) -> None:
        live, seq_id = list(self.pair.seen.live), self.free_id(rng)
        if seq_id is None or not live or self.config.kind is EngineKind.DECODE_ONLY:
            return
        if self.pair.seen.stats.used_slots == self.config.max_num_seqs and rng.random() < 0.8:
            return  # it could not share
        idle = [
            i for i in live if self.pair.seen.live[i].computed and not self.pair.seen.live[i].rows_in_flight
        ]
        parent = rng.choice(idle if idle and rng.random() < 0.8 else live)
        length = len(self.pair.seen.live[parent].tokens)
        size = max(1, length - rng.choice([0, 0, 0, 1, 2, 6]))
        if size >= length_limit(self.config):
            return
        options = self.options(rng, size)
        self.events["shared"] += self.pair.fork(parent, seq_id, size, random_limits(rng), self.now, options)

    def finish(self, rng: random.Random) -> None:
        ends = [FinishReason.ABORT, FinishReason.ABORT, FinishReason.STOP_STRING, FinishReason.ERROR]
        self.pair.finish(rng.randrange(self.crowd), rng.choice(ends))

    def set_ready(self, rng: random.Random) -> None:
        self.pair.set_ready(rng.randrange(self.crowd))

    def hand_over(self, rng: random.Random) -> None:
        """Begin a transfer, or end one: open, over or unknown."""
        seen, pair = self.pair.seen, self.pair
        prompted = [i for i in seen.in_state(SequenceState.PROMPTED) if not seen.live[i].tickets]
        if prompted and rng.random() < 0.6:
            pair.begin_transfer(rng.choice(prompted), self.now + rng.randint(0, 12))
            self.events["sent"] += 1
        elif pair.tickets:
            recent = max(0, len(pair.tickets) - 4)
            ended = pair.end_transfer(rng.randrange(recent, len(pair.tickets)), rng.random() < 0.7)
            self.events["transferred"] += ended
        assert not pair.scheduler.end_transfer(2**40)

    def receive(self, rng: random.Random) -> None:
        seq_id, limit = self.free_id(rng), length_limit(self.config)
        if seq_id is None or self.config.kind is EngineKind.PREFILL_ONLY or limit < 3:
            return
        size = rng.randint(2, limit - 1)
        prompt_len = size - rng.choice([1, 1, min(3, size - 1)])
        limits = replace(random_limits(rng), max_tokens=8, ignore_eos=True, stop_token_ids=())
        ticket = self.pair.import_sequence(
            seq_id,
            self.tokens(rng, size),
            prompt_len,
            limits,
            self.now + rng.randint(0, 12),
            self.options(rng, prompt_len),
        )
        self.events["received"] += ticket is not None
        if ticket is not None and rng.random() < 0.5:
            self.pair.end_transfer(ticket, True)

    def pass_time(self, rng: random.Random) -> None:
        self.now += rng.choice([0.5, 1.0, 5.0])

    def set_cost(self, rng: random.Random) -> None:
        if rng.random() < 0.3:
            self.pair.set_step_cost(None)
            return
        base, a_row = rng.choice([1.0, 4.0]), rng.choice([0.125, 0.5, 1.0])
        self.pair.set_step_cost(CostCurve((1, 257), (base + a_row, base + 257 * a_row), stepped=False))

    def plan(self, rng: random.Random, kind: StepKind = StepKind.ANY) -> None:
        """Plan if that is allowed now, else commit."""
        if len(self.pair.seen.steps) == self.config.max_steps_in_flight:
            return self.commit(rng)
        step = self.pair.make_plan(self.now, kind)
        self.events["in flight"] += len(self.pair.seen.steps) == 2
        self.events["copied"] += len(step.plan.copy_slots)
        return None

    def plan_one_kind(self, rng: random.Random) -> None:
        self.plan(rng, rng.choice([StepKind.DECODE, StepKind.PREFILL]))

    def commit(self, rng: random.Random) -> None:
        if self.pair.seen.steps:
            self.pair.commit(self.results(rng, self.pair.seen.steps[0].sampling), self.now)

    def run(self, rng: random.Random) -> None:
        """Ordinary steps, so that sequences get far enough to meet their limits."""
        for _ in range(rng.randint(2, 8)):
            self.plan(rng)

    def results(self, rng: random.Random, sampling: list[Rows]) -> Results:
        offers, failed = [self.offer(rng, rows) for rows in sampling], [rng.random() < 0.01 for _ in sampling]
        width = self.config.max_draft_tokens
        some = width and rng.random() < 0.9
        drafts = [self.tokens(rng, rng.randint(0, width)) if some else [] for _ in sampling]
        sure = rng.random() < 0.3
        confidences = [[1.0 if sure else rng.choice(CONFIDENCES) for _ in row] for row in drafts]
        return Results(offers, failed, drafts, confidences)

    def offer(self, rng: random.Random, rows: Rows) -> list[int]:
        if rng.random() < 0.015:
            broken: list[list[int]] = [
                [],
                [-1],
                [3] * (rows.most_tokens + 1),
                [4] * (rows.most_tokens - 1) + [-2],
            ]
            return rng.choice(broken)
        accepted = rng.choice([0, rows.most_tokens - 1, rng.randrange(rows.most_tokens)])
        return rows.tokens[1 : 1 + accepted] + self.tokens(rng, 1) if rows.decode else self.tokens(rng, 1)

    def close(self) -> None:
        """38, 44: whatever is left can be ended at any moment, and then nothing is held."""
        pair = self.pair
        for seq_id in list(pair.seen.live):
            pair.finish(seq_id)
        for number, (native, _, request) in enumerate(pair.tickets):
            if native in request.tickets:
                pair.end_transfer(number, False)
        while pair.seen.steps:
            pair.commit(pair.plain([1] * len(pair.seen.steps[0].sampling)))
        stats = pair.scheduler.stats()
        assert (stats.used_blocks, stats.used_slots) == (0, 0)
        assert not pair.scheduler.has_unfinished()
