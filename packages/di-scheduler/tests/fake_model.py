"""A stand-in for the model that reads and writes through the plan, as a real one does."""

from collections.abc import Sequence

import numpy as np
from di_scheduler import StepPlan

VOCAB = 50


def next_token(tokens: Sequence[int]) -> int:
    """The token that follows `tokens`: a hash of all of them."""
    state = 17
    for token in tokens:
        state = _mix(state, token)
    return state % VOCAB


def _mix(state: int, token: int) -> int:
    return (state * 1_000_003 + token + 1) % (2**61 - 1)


class FakeModel:
    """Keeps tokens in cache blocks and a running hash in state slots.

    A row finds its prefix through the block table and the slot only, so a block or slot that was given away too early,
    a position that was skipped or computed twice, shows as another token.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.cache: dict[tuple[int, int], int] = {}  # (block, offset) -> token
        self.states: dict[int, int] = {}  # slot -> hash of the tokens so far

    def run(self, plan: StepPlan) -> np.ndarray:
        """Compute all rows; returns one token per sampling sequence, int32 [n]."""
        sampled = []
        for i in range(plan.num_seqs):
            table, slot, start = plan.block_table[i], int(plan.slots[i]), int(plan.q_start[i])
            if start == 0:
                self.states[slot] = 17
            for row in range(plan.row_start[i], plan.row_start[i + 1]):
                token, position = int(plan.token_ids[row]), int(plan.positions[row])
                block = int(table[position // self.block_size])
                assert block != 0
                assert slot != 0
                self.cache[block, position % self.block_size] = token
                self.states[slot] = _mix(self.states[slot], token)
            if plan.samples[i]:
                end = start + int(plan.q_len[i])
                prefix = [self._read(table, position) for position in range(end)]
                assert self.states[slot] % VOCAB == next_token(prefix)
                sampled.append(next_token(prefix))
        return np.array(sampled, np.int32)

    def _read(self, table: np.ndarray, position: int) -> int:
        return self.cache[int(table[position // self.block_size]), position % self.block_size]
