"""One data-parallel rank: the real scheduler, and a device that draws nothing but counts."""

from __future__ import annotations

import numpy as np
from di_scheduler import (
    AdmissionError,
    CommitResult,
    Scheduler,
    SchedulerConfig,
    SequenceLimits,
    SequenceOptions,
    StepPlan,
)
from numpy.typing import NDArray

from di_engine.simulator.record import ends
from di_engine.simulator.trace import Trace

_DRAW_SCALE = 2.0**-53

Drawn = tuple[NDArray[np.int32], NDArray[np.int32]]
"""What a step drew: tokens int32 [sum(counts)], and counts int32 [n] over its sampling sequences."""


class Rank:
    """A scheduler whose sequences are requests of a trace, and the results that a model might have given it."""

    def __init__(self, trace: Trace, config: SchedulerConfig, acceptance: float, seed: int) -> None:
        """``acceptance``: the chance that a draft is accepted when those before it are, 0 to 1."""
        self.scheduler = Scheduler(config)
        self.held_tokens = 0
        """Prompt and generated tokens of the unfinished requests."""
        self.received = 0
        """Requests given to this rank, refused ones included."""
        self._trace = trace
        self._generated = np.zeros(len(trace), np.int64)
        self._drafts = config.max_draft_tokens
        self._acceptance = acceptance
        self._seed = seed
        self._prompt = np.ones(max(1, int(trace.prompt.max(initial=1))), np.int32)
        rows = config.max_num_batched_tokens
        self._tokens = np.ones(rows, np.int32)
        self._ones = np.ones(rows, np.int32)
        self._proposals = np.ones((config.max_num_seqs, self._drafts), np.int32)
        self._confidences = np.full((config.max_num_seqs, self._drafts), acceptance, np.float32)

    def add(self, request: int) -> bool:
        """Give the scheduler a request of the trace; False when it refuses."""
        trace = self._trace
        self.received += 1
        prompt_len = int(trace.prompt[request])
        try:
            self.scheduler.add(
                request,
                self._prompt[:prompt_len],
                SequenceLimits(max_tokens=int(trace.output[request])),
                float(trace.arrival[request]),
                SequenceOptions(priority=int(trace.priority[request]), user=int(trace.user[request])),
            )
        except AdmissionError:
            return False
        self.held_tokens += prompt_len
        return True

    def draw(self, plan: StepPlan) -> Drawn:
        """Tokens and counts of the sampling sequences of a plan: one each, and drafts up to the first that is refused.

        Whether the draft at a position of a request is accepted depends on the two and on the seed, whatever the
        schedule.
        """
        count = len(plan.sampling)
        if not self._drafts:
            return self._tokens[:count], self._ones[:count]
        sampling = plan.sampling
        drafts = np.where(plan.decodes[sampling], plan.q_len[sampling] - 1, 0)
        offsets = np.arange(self._drafts)
        positions = plan.q_start[sampling][:, None] + 1 + offsets
        drawn = uniform(plan.seq_ids[sampling][:, None], positions, self._seed)
        accepted = (drawn < self._acceptance) & (offsets < drafts[:, None])
        counts = (1 + np.logical_and.accumulate(accepted, axis=1).sum(axis=1)).astype(np.int32)
        return np.ones(int(counts.sum()), np.int32), counts

    def resolve(self, plan: StepPlan, drawn: Drawn) -> StepPlan:
        """A plan that was made behind an open one, filled in with what was drawn for that."""
        tokens, counts = drawn
        drafts, confidences = self._proposed(len(counts))
        return plan.resolve(tokens, counts, drafts, confidences)

    def commit(self, drawn: Drawn, now: float) -> CommitResult:
        """Give the scheduler what was drawn for the oldest open plan, with new drafts for everyone."""
        tokens, counts = drawn
        drafts, confidences = self._proposed(len(counts))
        result = self.scheduler.commit(tokens, counts, drafts=drafts, confidences=confidences, now=now)
        self._generated[result.seq_ids] += result.num_committed
        self.held_tokens += int(result.num_committed.sum())
        if result.finish.any():
            ended = result.seq_ids[ends(result)]
            self.held_tokens -= int(self._trace.prompt[ended].sum() + self._generated[ended].sum())
        return result

    def _proposed(self, count: int) -> tuple[NDArray[np.int32] | None, NDArray[np.float32] | None]:
        """Drafts of ``count`` sequences, and the chance that each is accepted; None without drafts."""
        if not self._drafts:
            return None, None
        return self._proposals[:count], self._confidences[:count]


def uniform(ids: NDArray[np.int64], positions: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), one for each (id, position), by a counter-based generator.

    The finalizer of SplitMix64 (Steele, Lea and Flood, 2014), applied to the counter after each of the three words.
    """
    word = _mix(np.asarray(seed, np.uint64) + ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    word = _mix(word + positions.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03))
    return (word >> np.uint64(11)).astype(np.float64) * _DRAW_SCALE


def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
