"""What a scheduler hands out: plans, commit results, statistics."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from di_scheduler import _native
from di_scheduler._checks import check_array
from di_scheduler.config import FinishReason


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """The rows of one step: S sequences, R rows, block tables W wide. Decodes come first.

    The arrays are read-only and own their memory: they stay as they are, whatever the scheduler does next. What they
    *say* (who owns which block) holds until the commit of this plan. A plan that was made while another was open may
    have `source` entries of at least 0: it is computed as `resolve` gives it.
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
    decodes: NDArray[np.bool_]
    """[S] whether it is a decode: one row, and drafts in the rows behind it."""
    source: NDArray[np.int32]
    """[S] index into the `sampling` of the open plan whose token this sequence waits for, or -1."""
    prompt_len: NDArray[np.int32]
    """[S] prompt tokens."""
    output_len: NDArray[np.int32]
    """[S] generated tokens before this step."""
    params: NDArray[np.float64]
    """[S, num_params] of `SequenceOptions.params`."""
    copy_blocks: NDArray[np.int32]
    """[c, 2] cache blocks (from, to) to copy before the rows are computed."""
    copy_slots: NDArray[np.int32]
    """[d, 2] state slots (from, to) to copy before the rows are computed."""
    preempted: NDArray[np.int64]
    """[p] ids of the sequences that lost their cache since the last plan, in that order."""
    expired: NDArray[np.int64]
    """[e] ids of the sequences that a deadline or a lease has ended since the last plan."""
    native: _native.Plan = field(repr=False)

    def resolve(
        self,
        tokens: NDArray[np.int32],
        counts: NDArray[np.int32],
        drafts: NDArray[np.int32] | None = None,
        confidences: NDArray[np.float32] | None = None,
    ) -> StepPlan:
        """The plan that is computed, from what the step before gave: the arrays that its commit gets.

        A function of these arrays and this plan alone, so that a device thread can call it; this plan stays as it is.
        Raises `ValueError` for arrays that cannot be of that step, `TypeError` for a wrong dtype or layout.
        """
        return make_plan(
            self.native.resolve(
                check_array("tokens", tokens, np.int32),
                check_array("counts", counts, np.int32),
                None if drafts is None else flat_rows("drafts", drafts, np.int32),
                None if confidences is None else flat_rows("confidences", confidences, np.float32),
            )
        )


def make_plan(native: _native.Plan) -> StepPlan:
    """The arrays of a native plan."""
    return StepPlan(**native.arrays())


def flat_rows(name: str, rows: NDArray[np.generic], dtype: type[np.generic]) -> NDArray[np.generic]:
    """A [n, k] array as its elements in order. Raises `TypeError` for another dtype, rank or layout."""
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or not rows.flags.c_contiguous:
        raise TypeError(
            f"{name} must be a contiguous 2-D array of {dtype.__name__}, got {type(rows).__name__}"
        )
    return check_array(name, rows.reshape(-1), dtype)


@dataclass(frozen=True, slots=True, eq=False)
class CommitResult:
    """What became of the n sampling sequences of a plan, in plan order."""

    seq_ids: NDArray[np.int64]
    """[n]"""
    num_committed: NDArray[np.int32]
    """[n] tokens kept, counted from the front of those offered; 0 if it failed or had ended meanwhile."""
    finish: NDArray[np.int8]
    """[n] a `FinishReason`; NONE while the sequence goes on."""
    first_token_wait: NDArray[np.float64]
    """[n] time from arrival to the first token, where this is it; else NaN."""


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
