"""What the scheduler costs: plan and commit of a step, by the number of running requests."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from di_scheduler import CommitResult, FinishReason, Scheduler, SchedulerConfig, SequenceLimits, StepPlan
from numpy.typing import NDArray

from di_engine.benchmark.timing import Timing, summarize_timings, time_calls

PROMPT_TOKENS = 128
BLOCK_SIZE = 128
WARM_UP_STEPS = 20
DRAFT_TOKENS = 3
"""Drafts behind each decode row in the case with drafts; two of three are accepted."""
ACCEPTED_DRAFTS = 2
CHUNK_ROWS = 512
"""Prefill rows of each step in the mixed case."""
LONG_PROMPT = 8 * CHUNK_ROWS + 100
"""Tokens of a prompt in the mixed case."""
LONG_PROMPTS = 2
"""Such prompts that are unfinished at any time."""

Tokens = NDArray[np.int32]


PLAN_ARRAYS = (
    "seq_ids",
    "q_start",
    "q_len",
    "row_start",
    "token_ids",
    "positions",
    "context",
    "block_table",
    "slots",
    "sampling",
    "decodes",
    "expired",
)
RESULT_ARRAYS = ("seq_ids", "num_committed", "finish")


class BenchmarkError(RuntimeError):
    """What was measured is not what should have been measured; the message says how."""


class Case(enum.Enum):
    """What a timed step holds."""

    DECODE = "decode"
    """One row a request."""
    READ = "decode, read"
    """The same, with the making of every array that a runner and an engine read of plan and result."""
    DRAFTS = "drafts"
    """One row and three drafts a request, of which two are accepted."""
    MIXED = "mixed"
    """One row a request, and 512 rows of prompts."""
    ASYNCHRONOUS = "asynchronous"
    """One row a request, planned while the step before it is in flight, and resolved."""


@dataclass(frozen=True, slots=True)
class CaseTiming:
    """Plan and commit (and resolve) of one case."""

    case: Case
    running: int
    """Requests that decode."""
    step: Timing
    """Seconds a step."""

    @property
    def per_request(self) -> float:
        """Seconds a step and running request, by the minimum."""
        return self.step.minimum / self.running


def measure_scheduler(
    running: Sequence[int], steps: int, progress: Callable[[CaseTiming], None] = lambda timing: None
) -> list[CaseTiming]:
    """Time ``steps`` steps of every case for every number of running requests; ``progress`` is called after each."""
    timings = []
    for count in running:
        for case in Case:
            loop = StepLoop(case, count, steps)
            timing = CaseTiming(case, count, summarize_timings(time_calls(loop.step, steps)))
            timings.append(timing)
            progress(timing)
    return timings


class StepLoop:
    """A scheduler in which ``running`` requests decode, for at least ``steps`` steps.

    Only calls into the scheduler are timed; results are arrays made before, as a device leaves them.
    """

    def __init__(self, case: Case, running: int, steps: int) -> None:
        self._case = case
        self._running = running
        self._drafts = DRAFT_TOKENS if case is Case.DRAFTS else 0
        prefill_steps = running * PROMPT_TOKENS // CHUNK_ROWS + 8
        tokens = (steps + WARM_UP_STEPS + prefill_steps) * (1 + self._drafts)
        self._scheduler = Scheduler(self._config(tokens))
        self._next_id = 0
        self._unfinished_prompts = 0
        self._tokens = np.ones(max(1, running + LONG_PROMPTS) * (1 + self._drafts), np.int32)
        self._ones = np.ones(len(self._tokens), np.int32)
        self._proposals = np.ones((running, self._drafts), np.int32) if self._drafts else None
        for _ in range(running):
            self._add(PROMPT_TOKENS, tokens)
        self._num_decodes = self._num_rows = 0
        self._open = self._scheduler.plan() if case is Case.ASYNCHRONOUS else None
        while not self._decodes_all():
            self._advance()
        for _ in range(WARM_UP_STEPS):
            self.step()

    def step(self) -> float:
        """One step; the seconds that the scheduler took. Raises :class:`BenchmarkError` if it is not as it should."""
        if self._case is Case.MIXED:
            self._keep_prompts_waiting()
        seconds = self._advance()
        if not self._decodes_all():
            raise BenchmarkError(f"a step of case {self._case.value} has not {self._running} decodes")
        return seconds

    def _advance(self) -> float:
        return self._plain_step() if self._open is None else self._overlapped_step(self._open)

    def _plain_step(self) -> float:
        start = time.perf_counter()
        plan = self._scheduler.plan()
        if self._case is Case.READ:
            _read(plan, PLAN_ARRAYS)
        planned = time.perf_counter()
        tokens, counts, drafts = self._results(plan)
        resumed = time.perf_counter()
        result = self._scheduler.commit(tokens, counts, drafts=drafts)
        if self._case is Case.READ:
            _read(result, RESULT_ARRAYS)
        seconds = planned - start + time.perf_counter() - resumed
        self._seen(plan, result)
        return seconds

    def _overlapped_step(self, open_plan: StepPlan) -> float:
        """Plan the next step, fill in the results of the open one, commit that."""
        tokens, counts, drafts = self._results(open_plan)
        start = time.perf_counter()
        following = self._scheduler.plan()
        self._open = following.resolve(tokens, counts, drafts)
        result = self._scheduler.commit(tokens, counts, drafts=drafts)
        seconds = time.perf_counter() - start
        self._seen(self._open, result)
        return seconds

    def _results(self, plan: StepPlan) -> tuple[Tokens, Tokens, Tokens | None]:
        """Tokens, counts and drafts of the step: every draft but the last is accepted."""
        count = len(plan.sampling)
        if self._proposals is None:
            return self._tokens[:count], self._ones[:count], None
        counts = np.maximum(1, plan.q_len[plan.sampling] - (DRAFT_TOKENS - ACCEPTED_DRAFTS))
        counts[~plan.decodes[plan.sampling]] = 1
        return self._tokens[: int(counts.sum())], counts.astype(np.int32), self._proposals[:count]

    def _seen(self, plan: StepPlan, result: CommitResult) -> None:
        self._num_decodes = int(plan.decodes.sum())
        self._num_rows = plan.num_rows
        self._unfinished_prompts -= int((result.finish != FinishReason.NONE).sum())

    def _decodes_all(self) -> bool:
        """Whether the last step held a decode of every request, and what else the case wants."""
        rows = self._running * (1 + self._drafts)
        return self._num_decodes == self._running and self._num_rows >= rows

    def _keep_prompts_waiting(self) -> None:
        """So many that a step finds enough rows; they end with their first token."""
        while self._unfinished_prompts < LONG_PROMPTS:
            self._add(LONG_PROMPT, 1)
            self._unfinished_prompts += 1

    def _add(self, prompt_tokens: int, max_tokens: int) -> None:
        self._scheduler.add(
            self._next_id, np.ones(prompt_tokens, np.int32), SequenceLimits(max_tokens=max_tokens)
        )
        self._next_id += 1

    def _config(self, tokens: int) -> SchedulerConfig:
        longest = max(PROMPT_TOKENS + tokens, LONG_PROMPT + 1)
        blocks = self._running * (-(-(PROMPT_TOKENS + tokens) // BLOCK_SIZE) + 1)
        seats = self._running + LONG_PROMPTS
        return SchedulerConfig(
            num_blocks=blocks + LONG_PROMPTS * (LONG_PROMPT // BLOCK_SIZE + 2) + seats,
            num_slots=seats + 1,
            block_size=BLOCK_SIZE,
            max_num_seqs=seats,
            max_num_batched_tokens=self._running * (1 + self._drafts) + CHUNK_ROWS,
            max_model_len=longest + 1,
            max_draft_tokens=self._drafts,
            max_steps_in_flight=2 if self._case is Case.ASYNCHRONOUS else 1,
        )


def _read(outcome: StepPlan | CommitResult, names: Sequence[str]) -> None:
    for name in names:
        getattr(outcome, name)
