"""Decode steps of several rows: rows of rejected drafts leave nothing behind that a later row could see.

Everything a step writes is overwritten before it is read again (cache specification, 7: rings with room for the longest
speculation), so the bits of the right tokens do not depend on what was tried in between: window rings, pairs of ratio
2, index keys, candidate blocks, n-gram windows and draft features alike.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from di_cache import CacheLayout, CachePool
from di_model.batch import build_batch
from di_model.cache_spec import cache_spec
from di_model.checkpoint import Checkpoint, load_checkpoint
from di_model.engram_tables import derive_engram
from di_model.model import Model
from di_model.numerics import Numerics
from di_model.testing import write_checkpoint
from torch import Tensor

TOKENS = torch.randint(3, 320, (44,), generator=torch.Generator().manual_seed(8)).tolist()
PROMPT = 5
BLOCK = 8
LOOKBACK = 2
MAX_DRAFTS = 5


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return load_checkpoint(write_checkpoint(tmp_path_factory.mktemp("tiny"), seed=6))


@pytest.fixture(scope="module", params=list(Numerics))
def model(tiny: Checkpoint, request: pytest.FixtureRequest) -> Model:
    engram = derive_engram(tiny.config, tiny.path)
    return Model(tiny.config, tiny.weights, engram, request.param, len(TOKENS) + MAX_DRAFTS)


class Sequences:
    """Sequences in one poisoned pool; ``held[i]`` are the tokens whose positions sequence ``i`` has computed."""

    def __init__(self, model: Model, count: int, *, max_drafts: int = MAX_DRAFTS) -> None:
        spec = cache_spec(model.config, model.numerics, block_size=BLOCK, max_draft_tokens=max_drafts)
        self.model, self.layout = model, CacheLayout.from_spec(spec)
        width = self.layout.blocks_for(len(TOKENS) + MAX_DRAFTS)
        self.pool = CachePool(self.layout, count * width + 1, count + 1, poison=True)
        self.tables = torch.arange(1, count * width + 1, dtype=torch.int32).view(count, width)
        self.held: list[list[int]] = [[] for _ in range(count)]

    def step(self, rows: Sequence[Sequence[int]]) -> list[tuple[Tensor, Tensor]]:
        """Logits and draft features of the given tokens of each sequence; ``held`` stays as it is."""
        which = [i for i, tokens in enumerate(rows) if tokens]
        context = [[self._token(i, len(self.held[i]) - 1 - k) for k in range(LOOKBACK)] for i in which]
        batch = build_batch(
            self.layout,
            tokens=torch.tensor([token for tokens in rows for token in tokens], dtype=torch.int32),
            q_start=torch.tensor([len(self.held[i]) for i in which], dtype=torch.int32),
            q_len=torch.tensor([len(rows[i]) for i in which], dtype=torch.int32),
            slots=torch.tensor([i + 1 for i in which], dtype=torch.int32),
            block_table=self.tables[which].contiguous(),
            context=torch.tensor(context, dtype=torch.int32),
        )
        output = self.model.forward(batch, self.pool)
        assert output.features is not None
        logits = self.model.logits(output.hidden)
        ends = torch.tensor([len(tokens) for tokens in rows]).cumsum(0).tolist()
        return [
            (logits[end - len(tokens) : end], output.features[end - len(tokens) : end])
            for tokens, end in zip(rows, ends, strict=True)
        ]

    def _token(self, i: int, position: int) -> int:
        return self.held[i][position] if position >= 0 else -1


@pytest.fixture(scope="module")
def expected(model: Model) -> tuple[Tensor, Tensor]:
    """Logits and features of every position, one row a step behind the prompt."""
    sequences = Sequences(model, 1)
    parts = []
    for tokens in (TOKENS[:PROMPT], *([token] for token in TOKENS[PROMPT:])):
        parts += sequences.step([tokens])
        sequences.held[0] += tokens
    return torch.cat([logits for logits, _ in parts]), torch.cat([features for _, features in parts])


def wrong(token: int) -> int:
    return 3 + (token + 1) % 300


def test_every_split_of_drafts_and_acceptance(model: Model, expected: tuple[Tensor, Tensor]) -> None:
    """All (drafts, accepted) pairs one after another at every parity, each followed by all others."""
    pairs = [(n, a) for n in range(MAX_DRAFTS + 1) for a in range(n + 1)]
    orders = [pairs, pairs[::-1], *(random.Random(seed).sample(pairs, len(pairs)) for seed in range(6))]
    sequences = Sequences(model, len(orders))
    sequences.step([TOKENS[:PROMPT]] * len(orders))
    for held in sequences.held:
        held += TOKENS[:PROMPT]
    seen = set()
    queues = [list(order) * 2 for order in orders]
    while any(len(held) < len(TOKENS) for held in sequences.held):
        rows: list[list[int]] = []
        accepted: list[int] = []
        for held, queue in zip(sequences.held, queues, strict=True):
            at = len(held)
            drafts, good = queue.pop(0)
            good = min(good, len(TOKENS) - at - 1)
            tokens = TOKENS[at : at + 1 + good]
            rejected = [wrong(token) for token in TOKENS[at + 1 + good :]][: drafts - good]
            rows.append(tokens + rejected if tokens else [])
            accepted.append(len(tokens))
            seen.add((len(rejected), len(tokens), at % 2, at % BLOCK))
        for i, (logits, features) in enumerate(sequences.step(rows)):
            at = len(sequences.held[i])
            sequences.held[i] += rows[i][: accepted[i]]
            for found, right in zip((logits, features), expected, strict=True):
                assert torch.equal(found[: accepted[i]], right[at : at + accepted[i]]), (i, at, rows[i])
    assert {at for _, _, _, at in seen} == set(range(BLOCK))
    assert {(n, p) for n, _, p, _ in seen} >= {(n, p) for n in range(MAX_DRAFTS + 1) for p in (0, 1)}


def test_rejections_in_a_row_at_one_position(model: Model, expected: tuple[Tensor, Tensor]) -> None:
    """The longest block, all wrong, again and again: one token a step."""
    sequences = Sequences(model, 1)
    sequences.step([TOKENS[:PROMPT]])
    sequences.held[0] += TOKENS[:PROMPT]
    for at in range(PROMPT, len(TOKENS)):
        block = [TOKENS[at], *(wrong(token) for token in TOKENS[at + 1 : at + 1 + MAX_DRAFTS])]
        ((logits, features),) = sequences.step([block])
        assert torch.equal(logits[0], expected[0][at])
        assert torch.equal(features[0], expected[1][at])
        sequences.held[0].append(TOKENS[at])


def test_more_drafts_than_the_rings_have_room_for_would_show(
    model: Model, expected: tuple[Tensor, Tensor]
) -> None:
    """The test above can fail: rings made for no drafts lose keys that are still needed."""
    sequences = Sequences(model, 1, max_drafts=0)
    sequences.step([TOKENS[:20]])
    sequences.held[0] += TOKENS[:20]
    sequences.step([[TOKENS[20], *map(wrong, TOKENS[21:26])]])
    sequences.held[0].append(TOKENS[20])
    ((logits, _),) = sequences.step([[TOKENS[21]]])
    assert not torch.equal(logits[0], expected[0][21])
