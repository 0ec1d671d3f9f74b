"""Random requests and random schedules for ``di verify equality``. Everything follows from one seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from di_cache import CacheLayout
from di_model.config import ModelConfig
from di_scheduler import StepPolicy
from di_spec import SamplingParams

MAX_OUTPUT = 24
"""Longest output of a drawn request: enough for a decode to cross a block border or a preemption."""

BLOCK_SIZES = (16, 32, 64, 128)
REQUESTS_PER_CASE = (2, 6)
REUSED = 0.8
"""Share of requests that repeat an earlier one, whose baseline is known; the rest are new."""

DRAFT_LENGTHS = (0, 0, 1, 3, 5)
"""Longest speculation of a case, 0 for none; at most what a model is loaded for by default."""

JITTER = 9
"""How far a prompt's length may lie from a border."""

RESERVED_TOKENS = 3
"""Ids 0..2 are BOS, EOS and padding; prompts are drawn from the rest."""


@dataclass(frozen=True)
class Request:
    """A prompt with its parameters. Equal requests have equal baselines."""

    prompt: tuple[int, ...]
    params: SamplingParams

    @property
    def seed(self) -> int:
        """Seed of its draws, which no two requests share."""
        seed = self.params.seed
        assert seed is not None  # every request is drawn with one
        return seed

    @property
    def max_tokens(self) -> int:
        """Most tokens that the sequence may come to hold."""
        return len(self.prompt) + (self.params.max_tokens or MAX_OUTPUT)


@dataclass(frozen=True)
class Arrival:
    """A request of a case: the step before which it is added, and before which it is aborted (None: never); its
    class and its user."""

    request: Request
    add_at: int
    abort_at: int | None
    priority: int
    user: int


@dataclass(frozen=True)
class Case:
    """One schedule: requests with their times, and the engine that runs them.

    ``priced`` says whether the scheduler chooses how many drafts it verifies by a cost curve.
    """

    index: int
    arrivals: tuple[Arrival, ...]
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_chunk_tokens: int | None
    policy: StepPolicy
    num_threads: int
    instruction_set: str
    async_scheduling: bool
    max_draft_tokens: int
    priced: bool


def longest_sequence(config: ModelConfig) -> int:
    """Tokens of the longest sequence that is drawn for a model."""
    longest = 2 * config.text.sliding_window + max(BLOCK_SIZES) + JITTER + MAX_OUTPUT
    return min(longest, config.text.max_position_embeddings)


class CaseGenerator:
    """Draws cases. Two generators with equal arguments draw the same ones.

    Args:
        config: model that the requests are for.
        layout: layout of its caches, whose ring sizes are borders worth crossing.
        seed: of everything drawn.
        instruction_sets: those that schedules run on.
    """

    def __init__(
        self, config: ModelConfig, layout: CacheLayout, seed: int, instruction_sets: Sequence[str]
    ) -> None:
        self._random = random.Random(seed)
        self._instruction_sets = tuple(instruction_sets)
        self._vocab_size = config.text.vocab_size
        window = config.text.sliding_window
        self._longest_prompt = longest_sequence(config) - MAX_OUTPUT
        borders = {1, 2, window, layout.window_cells, 2 * window, *BLOCK_SIZES}
        self._borders = tuple(sorted(border for border in borders if border <= self._longest_prompt))
        self._known: list[Request] = []

    def draw(self, index: int) -> Case:
        """The next case."""
        rng = self._random
        requests = [self._request() for _ in range(rng.randint(*REQUESTS_PER_CASE))]
        block_size = rng.choice(BLOCK_SIZES)
        needs = sorted(-(-request.max_tokens // block_size) for request in requests)
        # The longest sequence fits alone, but not all of them together: they preempt each other.
        num_blocks = 1 + rng.randint(needs[-1], max(needs[-1], sum(needs) * 2 // 3))
        max_num_seqs = rng.randint(2, len(requests))
        mixed = rng.random() < 0.5
        chunk = rng.choice((1, 7, 16, 33, 64, None)) if rng.random() < 0.8 else None
        return Case(
            index=index,
            arrivals=tuple(self._arrival(request, mixed=mixed) for request in requests),
            block_size=block_size,
            num_blocks=num_blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max(max_num_seqs, rng.choice((16, 48, 96, 300, 2048))),
            max_chunk_tokens=chunk if chunk != 1 or all(len(r.prompt) <= 40 for r in requests) else 7,
            policy=rng.choice((StepPolicy.MIXED, StepPolicy.MIXED, StepPolicy.HOMOGENEOUS)),
            num_threads=rng.choice((1, 1, 1, 2)),
            instruction_set=rng.choice(self._instruction_sets),
            async_scheduling=rng.random() < 0.6,
            max_draft_tokens=rng.choice(DRAFT_LENGTHS),
            priced=rng.random() < 0.4,
        )

    def _arrival(self, request: Request, *, mixed: bool) -> Arrival:
        rng = self._random
        add_at = rng.choice((0, 0, 1, 3, 8))
        abort_at = add_at + rng.randint(0, 20) if rng.random() < 0.12 else None
        priority, user = (rng.randint(-1, 1), rng.randint(0, 1)) if mixed else (0, 0)
        return Arrival(request, add_at, abort_at, priority, user)

    def _request(self) -> Request:
        if self._known and self._random.random() < REUSED:
            return self._random.choice(self._known)
        request = Request(self._prompt(), self._params())
        self._known.append(request)
        return request

    def _prompt(self) -> tuple[int, ...]:
        rng = self._random
        length = rng.choice(self._borders) + rng.choice((-1, 0, 0, 1, rng.randint(-JITTER, JITTER)))
        length = min(max(length, 1), self._longest_prompt)
        return tuple(rng.randrange(RESERVED_TOKENS, self._vocab_size) for _ in range(length))

    def _params(self) -> SamplingParams:
        rng = self._random
        greedy = rng.random() < 0.3
        penalised = rng.random() < 0.3
        max_tokens = rng.randint(1, MAX_OUTPUT)
        return SamplingParams(
            temperature=0.0 if greedy else rng.choice((0.5, 1.0, 1.7)),
            top_p=rng.choice((1.0, 1.0, 0.9, 0.3)),
            top_k=rng.choice((-1, -1, 1, 5, 40)),
            min_p=rng.choice((0.0, 0.0, 0.05)),
            repetition_penalty=rng.choice((1.3, 0.8)) if penalised else 1.0,
            presence_penalty=rng.choice((0.0, 0.7)) if penalised else 0.0,
            frequency_penalty=rng.choice((0.0, -0.4)) if penalised else 0.0,
            max_tokens=max_tokens,
            min_tokens=rng.choice((0, 0, min(3, max_tokens))),
            stop_token_ids=self._some_ids(40) if rng.random() < 0.25 else None,
            logit_bias=dict.fromkeys(self._some_ids(3), 2.0) if rng.random() < 0.15 else None,
            seed=rng.getrandbits(64),
            logprobs=rng.choice((0, 0, 3)),
            prompt_logprobs=rng.choice((None, None, 0, 2)),
        )

    def _some_ids(self, count: int) -> tuple[int, ...]:
        return tuple(self._random.sample(range(RESERVED_TOKENS, self._vocab_size), count))
