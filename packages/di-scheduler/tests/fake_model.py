"""A stand-in for the device that reads and writes through the plan, as a real one does, and a scripted drafter."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from di_scheduler import StepPlan
from numpy.typing import NDArray

VOCAB = 50
EMPTY = 17  # the hash of no tokens


def next_token(tokens: Sequence[int]) -> int:
    """The token that follows `tokens`: a hash of all of them."""
    state = EMPTY
    for token in tokens:
        state = _mix(state, token)
    return state % VOCAB


def _mix(state: int, token: int) -> int:
    return (state * 1_000_003 + token + 1) % (2**61 - 1)


@dataclass(frozen=True)
class DeviceResults:
    """What a step gives, as `Scheduler.commit` and `StepPlan.resolve` take it."""

    tokens: NDArray[np.int32]
    counts: NDArray[np.int32]
    drafts: NDArray[np.int32] | None
    confidences: NDArray[np.float32] | None


@dataclass
class Drafter:
    """Proposes tokens, each right with a chance of its own, and says what it thinks of them."""

    length: int
    accuracy: float
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def propose(self, prefix: list[int]) -> tuple[list[int], list[float]]:
        drafts: list[int] = []
        for _ in range(self.rng.randint(0, self.length)):
            right = self.rng.random() < self.accuracy
            drafts.append(next_token(prefix + drafts) if right else self.rng.randrange(VOCAB))
        return drafts, [self.rng.choice([1.0, 0.75, 0.5, 0.25]) for _ in drafts]


class FakeModel:
    """Keeps tokens in cache blocks and running hashes in state slots.

    A row finds its prefix through the block table and the slot only, so a block or slot that was given away too early,
    a position that was skipped or computed twice, shows as another token. A slot remembers the hashes of the last
    `max_draft_tokens + 1` positions besides the newest, so that rejected drafts can be taken back; older ones are gone.
    """

    def __init__(self, block_size: int, drafter: Drafter | None = None) -> None:
        self.block_size = block_size
        self.drafter = drafter or Drafter(0, 0.0)
        self.cache: dict[tuple[int, int], int] = {}  # (block, offset) -> token
        self.states: dict[int, dict[int, int]] = {}  # slot -> hash by number of tokens

    def run(self, plan: StepPlan) -> DeviceResults:
        """Compute all rows of a resolved plan."""
        self._copy(plan)
        offers, drafts = [], []
        for i in range(plan.num_seqs):
            assert plan.source[i] == -1
            yielded = self._rows(plan, i)
            if plan.samples[i]:
                prefix, offer = yielded
                offers.append(offer)
                drafts.append(self.drafter.propose(prefix + offer))
        return self._results(offers, drafts)

    def _copy(self, plan: StepPlan) -> None:
        for source, target in plan.copy_blocks.tolist():
            for offset in range(self.block_size):
                if (source, offset) in self.cache:
                    self.cache[target, offset] = self.cache[source, offset]
        for source, target in plan.copy_slots.tolist():
            self.states[target] = dict(self.states[source])

    def _rows(self, plan: StepPlan, i: int) -> tuple[list[int], list[int]]:
        """The tokens before what the rows yield, and those: drafts that were right, then the one after them."""
        table, slot = plan.block_table[i].tolist(), int(plan.slots[i])
        assert slot != 0
        start, end = int(plan.q_start[i]), int(plan.q_start[i] + plan.q_len[i])
        inputs = plan.token_ids[plan.row_start[i] : plan.row_start[i + 1]].tolist()
        if start == 0:
            self.states[slot] = {0: EMPTY}
        offer: list[int] = []
        for position, token in zip(range(start, end), inputs, strict=True):
            assert token >= 0
            block = table[position // self.block_size]
            assert block != 0
            self.cache[block, position % self.block_size] = token
            self._advance(slot, position, token)
            if plan.decodes[i] and len(offer) == position - start and (not offer or offer[-1] == token):
                offer.append(self._target(table, slot, position + 1))
        if plan.samples[i] and not plan.decodes[i]:
            offer.append(self._target(table, slot, end))
        first = start + 1 if plan.decodes[i] else end
        return [self._read(table, position) for position in range(first)], offer

    def _advance(self, slot: int, position: int, token: int) -> None:
        known = self.states[slot]
        known[position + 1] = _mix(known[position], token)
        oldest = position - self.drafter.length
        self.states[slot] = {
            count: value for count, value in known.items() if oldest <= count <= position + 1
        }

    def _target(self, table: list[int], slot: int, length: int) -> int:
        prefix = [self._read(table, position) for position in range(length)]
        token = next_token(prefix)
        assert self.states[slot][length] % VOCAB == token
        return token

    def _read(self, table: list[int], position: int) -> int:
        return self.cache[table[position // self.block_size], position % self.block_size]

    def _results(self, offers: list[list[int]], drafts: list[tuple[list[int], list[float]]]) -> DeviceResults:
        tokens = np.array([token for offer in offers for token in offer], np.int32)
        counts = np.array([len(offer) for offer in offers], np.int32)
        width = self.drafter.length
        if not width:
            return DeviceResults(tokens, counts, None, None)
        ids = np.full((len(offers), width), -1, np.int32)
        confidences = np.zeros((len(offers), width), np.float32)
        for i, (row, values) in enumerate(drafts):
            ids[i, : len(row)], confidences[i, : len(values)] = row, values
        return DeviceResults(tokens, counts, ids, confidences)

    def export(self, table: list[int], slot: int, length: int) -> tuple[list[int], dict[int, int]]:
        """What another device needs to go on: the cached tokens and the state."""
        return [self._read(table, position) for position in range(length)], dict(self.states[slot])

    def receive(self, table: list[int], slot: int, content: tuple[list[int], dict[int, int]]) -> None:
        tokens, state = content
        for position, token in enumerate(tokens):
            self.cache[table[position // self.block_size], position % self.block_size] = token
        self.states[slot] = dict(state)
