"""The scheduler: which rows the next step computes, and what its results mean for each sequence."""

import numpy as np
from numpy.typing import NDArray

from di_scheduler import _native
from di_scheduler._checks import check_array
from di_scheduler.config import FinishReason, SchedulerConfig, SequenceLimits, StepPolicy
from di_scheduler.results import CommitResult, SchedulerStats, SequenceInfo, SequenceState, StepPlan


class Scheduler:
    """Continuous batching over a pool of cache blocks and a pool of state slots.

    Index bookkeeping only: no tensors, no text, no sampling. Any one thread at a time may call it.

    Order is the order of `add` calls. Running sequences get rows before waiting ones; a waiting sequence is admitted
    when a slot, row budget and blocks for its first chunk are there, one free block per running sequence apart. Blocks
    are taken chunk by chunk. When a running sequence needs a block and none is free, the latest running sequence loses
    its cache and waits, itself if it is the latest; it starts again at position 0 with all its tokens, once it fits as
    a whole. So the oldest sequence always moves on, and every sequence ends.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        chunk = config.max_chunk_tokens
        self._native = _native.Scheduler(
            num_blocks=config.num_blocks,
            num_slots=config.num_slots,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_chunk_tokens=config.max_num_batched_tokens if chunk is None else chunk,
            max_model_len=config.max_model_len,
            lookback=config.lookback,
            homogeneous=config.policy is StepPolicy.HOMOGENEOUS,
        )

    def add(
        self, seq_id: int, prompt: NDArray[np.int32], limits: SequenceLimits, arrival: float = 0.0
    ) -> None:
        """Put a sequence at the end of the waiting queue.

        `seq_id` is at least 0 and may be used again as soon as its sequence has ended, by `abort` too. `prompt`: int32
        [tokens], copied. `arrival` is kept for statistics and decides nothing. Raises `AdmissionError` (and keeps
        nothing) for a prompt that is empty, has a negative id, or could never fit `max_model_len` or the block pool
        together with one generated token; for an id in use; for a time that is not finite. Raises `TypeError` for an
        array of another dtype, rank or layout.
        """
        self._native.add(
            seq_id,
            check_array("prompt", prompt, np.int32),
            max_tokens=limits.max_tokens,
            min_tokens=limits.min_tokens,
            eos_token_ids=limits.eos_token_ids,
            stop_token_ids=limits.stop_token_ids,
            ignore_eos=limits.ignore_eos,
            arrival=arrival,
        )

    def abort(self, seq_id: int) -> bool:
        """End a sequence with ABORT at any point of its life; False if the id is unknown or has ended."""
        return self.finish(seq_id, FinishReason.ABORT)

    def finish(self, seq_id: int, reason: FinishReason) -> bool:
        """End a sequence for a reason that the caller found; False if the id is unknown or has ended.

        Its blocks and slot are free at once, or, if the open plan has rows of it, at the commit of that plan, which
        reports it with 0 tokens and this reason. Raises `ValueError` for NONE.
        """
        if reason == FinishReason.NONE:
            raise ValueError("reason must say why the sequence ends, got FinishReason.NONE")
        return self._native.finish(seq_id, FinishReason(reason))

    def plan(self) -> StepPlan:
        """Choose the rows of the next step. Empty exactly when nothing is unfinished.

        Raises `StepOrderError` while an earlier plan with rows awaits its commit.
        """
        return StepPlan(**self._native.plan())

    def commit(
        self,
        tokens: NDArray[np.int32],
        counts: NDArray[np.int32],
        failed: NDArray[np.bool_] | None = None,
    ) -> CommitResult:
        """Take in the results of the open plan.

        `tokens`: int32 [sum(counts)], those of the first sampling sequence first. `counts`: int32 [n], how many of them
        belong to the i-th sampling sequence (`plan.sampling`); more than one is allowed, and what follows a stop is
        dropped. `failed`: bool [n], sequences that end with ERROR instead; their counts may be 0.

        A sequence without a token or with a negative one ends with ERROR, its neighbours are not touched. Arrays that
        do not fit the plan or each other raise `ValueError` (wrong dtype, rank or layout: `TypeError`) and change
        nothing. Raises `StepOrderError` when there is no plan to commit; committing an empty plan is allowed and not
        required.
        """
        return CommitResult(
            **self._native.commit(
                check_array("tokens", tokens, np.int32),
                check_array("counts", counts, np.int32),
                None if failed is None else check_array("failed", failed, np.bool_),
            )
        )

    def has_unfinished(self) -> bool:
        """Whether any sequence waits, runs, or has rows in an uncommitted plan."""
        return self._native.has_unfinished()

    def stats(self) -> SchedulerStats:
        """A snapshot of pools, queues and counters."""
        return SchedulerStats(**self._native.stats())

    def output_tokens(self, seq_id: int) -> NDArray[np.int32]:
        """Generated tokens, int32 [n], of an unfinished sequence or one that ended since the last `plan`.

        Raises `KeyError` for any other id.
        """
        return self._native.output_tokens(seq_id)

    def describe(self, seq_id: int) -> SequenceInfo:
        """A snapshot of a sequence, under the same conditions as `output_tokens`."""
        values = self._native.describe(seq_id)
        values["state"] = SequenceState(values["state"])
        values["finish"] = FinishReason(values["finish"])
        return SequenceInfo(**values)

    def waiting_ids(self) -> NDArray[np.int64]:
        """Ids in the waiting queue, in order, int64 [n]."""
        return self._native.waiting_ids()

    def running_ids(self) -> NDArray[np.int64]:
        """Ids of running sequences, in order, int64 [n]."""
        return self._native.running_ids()
