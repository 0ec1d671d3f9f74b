"""What a scheduler tells about itself. Plans and commit results are native: `StepPlan`, `CommitResult`."""

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from di_scheduler.config import FinishReason


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A snapshot of pools and queues, and counts since construction."""

    free_blocks: int
    used_blocks: int
    free_slots: int
    used_slots: int
    waiting: int
    """Sequences without a slot."""
    running: int
    """Sequences that get rows."""
    prompted: int
    """Finished prompts that wait to be handed over."""
    receiving: int
    """Sequences whose cache is being imported."""
    not_ready: int
    """Sequences that wait for `set_ready`."""
    preemptions: int
    preemptions_in_flight: int
    """Those of sequences that were in flight when they were chosen, and lost their cache at a commit."""
    aborts: int
    """Sequences that ended with ABORT."""
    refusals: int
    """Calls that raised `AdmissionError`."""
    expirations: int
    """Sequences that a deadline or a lease has ended."""
    steps: int
    """Plans that were not empty."""
    chunks: int
    """Planned pieces that stopped short of the end of their sequence."""
    mixed_steps: int
    """Steps with both decode and prefill rows."""
    drafts_planned: int
    """Draft rows, as planned."""
    drafts_accepted: int
    """Tokens kept beyond the first of a decode."""
    tokens_committed: int
    num_first_scheduled: int
    """Sequences that have had rows; the next four are about their waits for them."""
    steps_waited_sum: int
    """Steps between coming and the first rows, that one not counted."""
    steps_waited_max: int
    wait_sum: float
    """Time from arrival to the plan with the first rows."""
    wait_max: float
    num_first_tokens: int
    """Sequences whose first token was committed here; the next two are about their waits for it."""
    first_token_wait_sum: float
    first_token_wait_max: float
    oldest_waiting_arrival: float | None
    """Arrival time, as given to `add`, of the oldest sequence in the waiting queue."""


class SequenceState(enum.IntEnum):
    """Where a sequence is in its life."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2
    PROMPTED = 3
    """Its prompt is done and waits to be handed over."""
    RECEIVING = 4
    """Its cache is being imported."""


@dataclass(frozen=True, slots=True, eq=False)
class SequenceInfo:
    """A snapshot of one sequence, for tests and tools."""

    state: SequenceState
    finish: FinishReason
    arrival: float
    length: int
    """Prompt and generated tokens."""
    prompt_len: int
    num_computed: int
    """Positions in the cache, rows in flight not counted."""
    num_preemptions: int
    in_flight: bool
    """Whether a step or a transfer uses what it holds."""
    block_table: NDArray[np.int32]
    """[held blocks] in position order."""
    slot: int
    """State slot, 0: none."""
