"""The scheduler: which rows the next step computes, and what its results mean for each sequence."""

import numpy as np
from numpy.typing import NDArray

from di_scheduler import _native
from di_scheduler._checks import INT32_MAX, check_array, check_int, check_number, check_outcome, check_type
from di_scheduler._native import CommitResult, StepPlan
from di_scheduler.config import (
    FinishReason,
    SchedulerConfig,
    SequenceLimits,
    SequenceOptions,
    StepKind,
    StepPolicy,
)
from di_scheduler.results import SchedulerStats, SequenceInfo, SequenceState
from di_scheduler.speculation import DraftBudget

DEFAULT_OPTIONS = SequenceOptions()


class Scheduler:
    """Continuous batching over a pool of cache blocks and a pool of state slots.

    Index bookkeeping only: no tensors, no text, no sampling, no clock. Any thread may call any method; calls wait for
    each other, and `plan` and `commit` release the interpreter lock.

    The rules are in docs/interfaces.md; in short: running sequences get rows before waiting ones; decodes before
    prefill; classes by priority, users of a class by what they have had, then order of `add`. Blocks are taken chunk by
    chunk. When a running sequence needs a block and none is free, another one behind it, the least invested, loses its
    cache and starts again once it fits as a whole. The oldest sequence never does, so every sequence ends.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        check_type("config", config, SchedulerConfig)
        self.config = config
        chunk, context = config.max_chunk_tokens, config.max_step_context
        self._native = _native.Scheduler(
            num_blocks=config.num_blocks,
            num_slots=config.num_slots,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_chunk_tokens=config.max_num_batched_tokens if chunk is None else chunk,
            max_model_len=config.max_model_len,
            max_draft_tokens=config.max_draft_tokens,
            max_steps_in_flight=config.max_steps_in_flight,
            max_step_context=2**62 if context is None else context,
            chunk_align=config.chunk_align,
            watermark_blocks=int(config.watermark * (config.num_blocks - 1)),
            max_overtakes=config.max_overtakes,
            lookback=config.lookback,
            num_params=config.num_params,
            homogeneous=config.policy is StepPolicy.HOMOGENEOUS,
            kind=config.kind,
        )

    # The life of a sequence.

    def add(
        self,
        seq_id: int,
        prompt: NDArray[np.int32],
        limits: SequenceLimits,
        arrival: float = 0.0,
        options: SequenceOptions = DEFAULT_OPTIONS,
    ) -> None:
        """Put a sequence into the waiting queue.

        `seq_id` is at least 0 and may be used again as soon as its sequence has ended, by `abort` too. `prompt`: int32
        [tokens], copied. `arrival` is kept for statistics and decides nothing. Raises `AdmissionError` (and keeps
        nothing) for a prompt that is empty, has a negative id, or could never fit `max_model_len` or the block pool
        together with one generated token; for an id in use; for a time that is not finite; for checkpoints, images or
        params that do not fit. Raises `TypeError` for an array of another dtype, rank or layout.
        """
        prompt = check_array("prompt", prompt, np.int32)
        self._native.add(_id(seq_id), prompt, _limits(limits), _time("arrival", arrival), _options(options))

    def set_ready(self, seq_id: int) -> bool:
        """Let a sequence that was added with `ready=False` run; False if it is unknown, ended, or ready already."""
        return self._native.set_ready(_id(seq_id))

    def abort(self, seq_id: int) -> bool:
        """End a sequence with ABORT at any point of its life; False if the id is unknown or has ended."""
        return self.finish(seq_id, FinishReason.ABORT)

    def finish(self, seq_id: int, reason: FinishReason) -> bool:
        """End a sequence for a reason that the caller found; False if the id is unknown or has ended.

        What it holds is free at once, or, if open plans have rows of it, at the last of their commits, each of which
        reports it with 0 tokens and this reason. Raises `ValueError` for NONE.
        """
        check_type("reason", reason, FinishReason)
        if reason is FinishReason.NONE:
            raise ValueError("reason must say why the sequence ends, got FinishReason.NONE")
        return self._native.finish(_id(seq_id), reason)

    def fork(
        self,
        parent_id: int,
        seq_id: int,
        num_tokens: int,
        limits: SequenceLimits,
        arrival: float = 0.0,
        options: SequenceOptions = DEFAULT_OPTIONS,
    ) -> bool:
        """Add a sequence whose prompt is the first `num_tokens` tokens of another one, on that one's cache if possible.

        Whether it shares: the parent must hold its cache, have no rows in flight, and have written no more than
        `max_draft_tokens + 1` positions beyond those shared; a slot, and a block for a partial
        tail, must be free. Otherwise the sequence waits like any other and is computed. Raises `KeyError` for an
        unknown parent, `ValueError` for `num_tokens` outside 1 .. the parent's tokens, and what `add` raises.
        """
        return self._native.fork(
            _id(parent_id, "parent_id"),
            _id(seq_id),
            check_int("num_tokens", num_tokens, -INT32_MAX),
            _limits(limits),
            _time("arrival", arrival),
            _options(options),
        )

    # Steps.

    def plan(self, now: float = 0.0, kind: StepKind = StepKind.ANY) -> StepPlan:
        """Choose the rows of the next step.

        `now` is the time on the caller's clock, for deadlines, leases and statistics. Empty when nothing can be
        computed before an open plan is committed, a transfer ends or a sequence is ready; with `kind`, when there is
        nothing of that kind. Raises `StepOrderError` while `max_steps_in_flight` plans with rows await their commit.
        """
        try:
            return self._native.plan(now, kind)
        except TypeError:
            check_type("kind", kind, StepKind)
            return self._native.plan(_time("now", now), kind)

    def commit(
        self,
        tokens: NDArray[np.int32],
        counts: NDArray[np.int32],
        failed: NDArray[np.bool_] | None = None,
        drafts: NDArray[np.int32] | None = None,
        confidences: NDArray[np.float32] | None = None,
        now: float = 0.0,
    ) -> CommitResult:
        """Take in the results of the oldest open plan (as resolved).

        `tokens`: int32 [sum(counts)], those of the first sampling sequence first. `counts`: int32 [n], how many of
        them belong to the i-th sampling sequence (`plan.sampling`): 1, or for a decode up to its `q_len`, of which
        all but the last are its drafts; what follows a stop is dropped. `failed`: bool [n], sequences that end with
        ERROR instead; their counts may be 0. `drafts`: int32 [n, max_draft_tokens] proposals that follow the last
        token, -1 ends a row; `confidences`: float32, the same shape, the chance that each is accepted given those
        before it.

        A sequence without a token, with too many or with a negative one ends with ERROR, its neighbours are not
        touched. Arrays that do not fit the plan or each other raise `ValueError` (wrong dtype, rank or layout:
        `TypeError`) and change nothing. Raises `StepOrderError` when there is no plan to commit; committing an empty
        plan is allowed and not required.
        """
        try:
            return self._native.commit(tokens, counts, failed, drafts, confidences, now)
        except TypeError:
            check_outcome(tokens, counts, failed, drafts, confidences)  # says which one it was
            return self._native.commit(tokens, counts, failed, drafts, confidences, _time("now", now))

    def set_step_cost(self, budget: DraftBudget | None) -> None:
        """Verify as many drafts as pay by this cost, as it is now, in plans to come; None: all of them."""
        if budget is not None:
            check_type("budget", budget, DraftBudget)
        self._native.set_step_cost(None if budget is None else budget.native)

    # Hand-over between engines.

    def begin_transfer(self, seq_id: int, expires: float) -> int:
        """Start handing over a PROMPTED sequence; a ticket for `end_transfer`.

        What it holds stays until the ticket ends or `plan` is called with a time of at least `expires`. Raises
        `KeyError` for an unknown id, `ValueError` for a sequence that is not PROMPTED or has a transfer.
        """
        return self._native.begin_transfer(_id(seq_id), check_number("expires", expires))

    def import_sequence(
        self,
        seq_id: int,
        tokens: NDArray[np.int32],
        prompt_len: int,
        limits: SequenceLimits,
        expires: float,
        arrival: float = 0.0,
        options: SequenceOptions = DEFAULT_OPTIONS,
    ) -> int | None:
        """Make room for a sequence that another engine has begun; a ticket, or None when there is no room now.

        `tokens`: int32 prompt and output so far, of which `prompt_len` are prompt and at least one is output. The
        caller fills the blocks and the slot that `describe` names for all positions but the last, then calls
        `end_transfer`. Raises what `add` raises, and `AdmissionError` for a `prompt_len` or an output that leaves
        nothing to do.
        """
        tokens = check_array("tokens", tokens, np.int32)
        return self._native.import_sequence(
            _id(seq_id),
            tokens,
            check_int("prompt_len", prompt_len, 0),
            _limits(limits),
            check_number("expires", expires),
            _time("arrival", arrival),
            _options(options),
        )

    def end_transfer(self, ticket: int, ok: bool = True) -> bool:
        """End a transfer; False, and nothing happens, for a ticket that is unknown, ended or expired.

        With `ok` an imported sequence runs and one that was handed over ends with HANDED_OVER. Without, an imported
        one is computed again (a DECODE_ONLY engine ends it with ERROR), and a handed-over one ends with ERROR. A
        sequence that ended meanwhile gives its blocks back.
        """
        check_type("ok", ok, bool)
        return self._native.end_transfer(_id(ticket, "ticket"), ok)

    # Looking in.

    def wants_prefill(self) -> bool:
        """Whether a prompt could be started or continued now."""
        return self._native.wants_prefill()

    def has_decodes(self) -> bool:
        """Whether a plan could have a decode now."""
        return self._native.has_decodes()

    def has_unfinished(self) -> bool:
        """Whether any sequence is unfinished or a plan with rows is open."""
        return self._native.has_unfinished()

    def num_open_plans(self) -> int:
        """Plans with rows that await their commit."""
        return self._native.num_open_plans()

    def stats(self) -> SchedulerStats:
        """A snapshot of pools, queues and counters."""
        return SchedulerStats(**self._native.stats())

    def output_tokens(self, seq_id: int) -> NDArray[np.int32]:
        """Generated tokens, int32 [n], of an unfinished sequence or one that ended since the last `plan`.

        Raises `KeyError` for any other id.
        """
        return self._native.output_tokens(_id(seq_id))

    def describe(self, seq_id: int) -> SequenceInfo:
        """A snapshot of a sequence, under the same conditions as `output_tokens`."""
        values = self._native.describe(_id(seq_id))
        values["state"] = SequenceState(values["state"])
        values["finish"] = FinishReason(values["finish"])
        return SequenceInfo(**values)

    def waiting_ids(self) -> NDArray[np.int64]:
        """Ids of waiting sequences by (priority, order of `add`), int64 [n]."""
        return self._native.waiting_ids()

    def running_ids(self) -> NDArray[np.int64]:
        """Ids of running sequences by (priority, order of `add`), int64 [n]."""
        return self._native.running_ids()


def _id(value: int, name: str = "seq_id") -> int:
    """An id as an int; any that no sequence can have is unknown, and none is of another type."""
    return check_int(name, value, -(2**63), 2**63 - 1)


def _time(name: str, value: float) -> float:
    """A time as a float. Whether it must be finite is said where it is used."""
    if isinstance(value, float):
        return value
    return check_number(name, value)


def _limits(limits: SequenceLimits) -> _native.Limits:
    check_type("limits", limits, SequenceLimits)
    return _native.Limits(
        limits.max_tokens, limits.min_tokens, limits.eos_token_ids, limits.stop_token_ids, limits.ignore_eos
    )


def _options(options: SequenceOptions) -> _native.Options:
    check_type("options", options, SequenceOptions)
    return _native.Options(
        options.priority,
        options.user,
        options.weight,
        options.ready,
        options.deadline,
        options.checkpoints,
        options.images,
        options.params,
    )
