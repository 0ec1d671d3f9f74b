"""What a scheduler hands out: plans, commit results, statistics."""

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from di_scheduler.config import FinishReason


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """The rows of one step: S sequences, R rows, block tables W wide. Decode rows come first.

    The arrays are read-only and own their memory: they stay as they are, whatever the scheduler does next. What they
    *say* (who owns which block) holds until the commit of this plan.
    """

    step: int
    """Number of this step, counted from 1; an empty plan repeats the number of the step before."""
    num_seqs: int
    """S; 0 when there is nothing to do."""
    num_rows: int
    """R, at most `max_num_batched_tokens`."""
    seq_ids: NDArray[np.int64]
    """[S] in the order of the rows."""
    q_start: NDArray[np.int32]
    """[S] first position computed; positions before it are in the cache."""
    q_len: NDArray[np.int32]
    """[S] positions computed, at least 1."""
    row_start: NDArray[np.int32]
    """[S + 1] first row of each sequence: exclusive prefix sums of `q_len`."""
    token_ids: NDArray[np.int32]
    """[R] input token of each row."""
    positions: NDArray[np.int32]
    """[R] position of each row in its sequence."""
    context: NDArray[np.int32]
    """[S, lookback] `context[i, k]` is the token at `q_start[i] - 1 - k`, -1 before the start of the sequence."""
    block_table: NDArray[np.int32]
    """[S, W] blocks in position order, 0 beyond the end of a table."""
    slots: NDArray[np.int32]
    """[S] state slot of each sequence."""
    samples: NDArray[np.bool_]
    """[S] whether the last row of the sequence yields a token."""
    sampling: NDArray[np.int32]
    """[n] indices into S where `samples` is true, ascending."""
    prompt_len: NDArray[np.int32]
    """[S] prompt tokens."""
    output_len: NDArray[np.int32]
    """[S] generated tokens committed before this step."""
    preempted: NDArray[np.int64]
    """[p] ids of the sequences that lost their cache while this plan was made, in that order."""


@dataclass(frozen=True, slots=True, eq=False)
class CommitResult:
    """What became of the n sampling sequences of a plan, in plan order."""

    seq_ids: NDArray[np.int64]
    """[n]"""
    num_committed: NDArray[np.int32]
    """[n] tokens kept, counted from the front of those offered; 0 if it failed or had ended meanwhile."""
    finish: NDArray[np.int8]
    """[n] a `FinishReason`; NONE while the sequence goes on."""


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
    """Sequences with a slot, sequences that ended in flight not counted."""
    preemptions: int
    aborts: int
    """Sequences that ended with ABORT."""
    refusals: int
    """`add` calls that raised `AdmissionError`."""
    steps: int
    """Plans that were not empty."""
    chunks: int
    """Planned pieces that stopped short of the end of their sequence."""
    mixed_steps: int
    """Steps with both decode and prefill rows."""
    oldest_waiting_arrival: float | None
    """Arrival time, as given to `add`, of the first sequence in the waiting queue."""


class SequenceState(enum.IntEnum):
    """Where a sequence is in its life."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2


@dataclass(frozen=True, slots=True, eq=False)
class SequenceInfo:
    """A snapshot of one sequence, for tests and tools."""

    state: SequenceState
    finish: FinishReason
    arrival: float
    length: int
    """Prompt and generated tokens."""
    num_computed: int
    """Positions in the cache, rows in flight not counted."""
    num_preemptions: int
    block_table: NDArray[np.int32]
    """[held blocks] in position order."""
    slot: int
    """State slot, 0: none."""
