"""Equal bits whatever the schedule: random cases through the real engine against each request run alone."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from di_kernels import equal_instruction_sets, instruction_sets, set_num_threads
from di_model.packed import WeightLayout
from di_scheduler.cost_curve import CostCurve
from di_scheduler.speculation import DraftBudget
from di_spec import Drafter, LogprobEntry

from di_engine.capacity import available_memory, plan_capacity
from di_engine.config import EngineConfig
from di_engine.engine import LLMEngine
from di_engine.loading import LoadedModel, load_model
from di_engine.outputs import RequestOutput
from di_engine.request import RequestOptions
from di_engine.stats import EngineStats
from di_engine.verify.cases import Case, CaseGenerator, Request, longest_sequence
from di_engine.verify.drafter import Continuation, ScriptedDrafter
from di_engine.verify.settings import kernel_settings

WORK_PER_THREAD = 1 << 11
"""Work that wakes a thread where a case uses several: small enough that small models share theirs out too."""
STEP_COST = CostCurve(sizes=(1, 8, 64), milliseconds=(10.0, 12.0, 60.0), stepped=False)
"""Of cases that choose how many drafts they verify: a few pay, many do not."""
STEPS_PER_TOKEN = 20
"""A case that takes more steps than this for each token of its requests makes no progress."""


@dataclass(frozen=True)
class Outcome:
    """Everything that came of one request; ``finish_reason`` is that of :class:`~di_engine.outputs.RequestOutput`."""

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[LogprobEntry, ...]
    prompt_logprobs: tuple[LogprobEntry, ...] | None
    finish_reason: str | None
    error: str | None


@dataclass(frozen=True)
class Difference:
    """The first thing that went wrong.

    case: the schedule. request: index of the request in it (None: the case as a whole). what: expected and found.
    """

    case: Case
    request: int | None
    what: str


@dataclass(frozen=True)
class Coverage:
    """What the cases exercised, summed up; the engine's own counters."""

    requests: int = 0
    steps: int = 0
    preemptions: int = 0
    chunks: int = 0
    mixed_steps: int = 0
    aborts: int = 0
    threaded_cases: int = 0
    priority_cases: int = 0
    overlapped_steps: int = 0
    preemptions_in_flight: int = 0
    drafts_planned: int = 0
    drafts_accepted: int = 0
    priced_cases: int = 0

    def plus(self, case: Case, stats: EngineStats) -> Coverage:
        """With one more case."""
        scheduler = stats.scheduler
        more = Coverage(
            requests=len(case.arrivals),
            steps=scheduler.steps,
            preemptions=scheduler.preemptions,
            chunks=scheduler.chunks,
            mixed_steps=scheduler.mixed_steps,
            aborts=scheduler.aborts,
            threaded_cases=case.num_threads > 1,
            priority_cases=len({arrival.priority for arrival in case.arrivals}) > 1,
            overlapped_steps=stats.counters.overlapped_steps,
            preemptions_in_flight=scheduler.preemptions_in_flight,
            drafts_planned=scheduler.drafts_planned,
            drafts_accepted=scheduler.drafts_accepted,
            priced_cases=case.priced and scheduler.drafts_planned > 0,
        )
        return Coverage(**{name: count + getattr(more, name) for name, count in asdict(self).items()})

    @property
    def absent(self) -> tuple[str, ...]:
        """Counts that are 0: without them, nothing was shown about them."""
        return tuple(name for name, count in asdict(self).items() if count == 0)


@dataclass(frozen=True)
class EqualityReport:
    """Cases that were run, distinct requests in them, what was exercised, and the first difference if any."""

    cases: int
    distinct_requests: int
    coverage: Coverage
    difference: Difference | None

    @property
    def passed(self) -> bool:
        """No difference, and every kind of disturbance occurred."""
        return self.difference is None and not self.coverage.absent


class EqualityCheck:
    """Runs cases over one loaded model.

    Args:
        checkpoint: checkpoint directory; it may hold any sizes.
        seed: of requests and schedules.
        loaded: a model to run instead of the one in ``checkpoint``, everywhere.
        instruction_set: of all runs. None: schedules have the vectorized ones of this machine, or the only one it has,
            in turn, and a request alone the best one that has the same bits.
        weight_layout: of schedules. The requests alone read weights as stored, or ``loaded``.

    Raises:
        FileNotFoundError, ValueError: see :func:`~di_engine.loading.load_model`.
    """

    def __init__(
        self,
        checkpoint: Path,
        seed: int,
        *,
        loaded: LoadedModel | None = None,
        instruction_set: str | None = None,
        weight_layout: WeightLayout = WeightLayout.AUTO,
    ) -> None:
        self._base = EngineConfig(
            model=checkpoint, max_num_seqs=1, instruction_set=instruction_set, weight_layout=weight_layout
        )
        as_stored = replace(self._base, weight_layout=WeightLayout.STORED)
        self._loaded = load_model(self._base) if loaded is None else loaded
        self._loaded_alone = (
            self._loaded if loaded is not None or as_stored == self._base else load_model(as_stored)
        )
        every = instruction_sets()
        drawn = (every[1:] or every) if instruction_set is None else (instruction_set,)
        # Of each set the best one that has its bits.
        self._best_equal = {name: group[-1] for group in equal_instruction_sets() for name in group}
        self._cases = CaseGenerator(self._loaded.config, self._loaded.capacity.layout, seed, drawn)
        self._baselines: dict[tuple[Request, str], Outcome] = {}

    def run(self, cases: int, progress: Callable[[int], None] = lambda done: None) -> EqualityReport:
        """Run ``cases`` cases, or as many as it takes to find a difference.

        Args:
            cases: how many.
            progress: called with the number of cases done.
        """
        coverage = Coverage()
        difference = None
        done = 0
        with kernel_settings(num_threads=1):
            while done < cases and difference is None:
                case = self._cases.draw(done)
                difference, stats = self._run(case)
                coverage = coverage.plus(case, stats)
                done += 1
                progress(done)
        return EqualityReport(done, len(self._baselines), coverage, difference)

    def _run(self, case: Case) -> tuple[Difference | None, EngineStats]:
        alone = self._base.instruction_set or self._best_equal[case.instruction_set]
        baselines = [self._baseline(arrival.request, alone) for arrival in case.arrivals]
        drafter = self._drafter(case, baselines)
        with self._engine(_settings(self._base, case), self._loaded, drafter) as engine:
            # Learning from what steps take here, a case would not run the same way again.
            engine.set_step_cost(DraftBudget(STEP_COST) if case.priced else None, learn=False)
            set_num_threads(case.num_threads, work_per_thread=WORK_PER_THREAD)
            outcomes = _drive(engine, case)
            stats = engine.stats()
        if outcomes is None:
            return Difference(case, None, f"not finished after {stats.scheduler.steps} steps"), stats
        for index, (outcome, baseline) in enumerate(zip(outcomes, baselines, strict=True)):
            what = first_difference(outcome, baseline)
            if what is not None:
                return Difference(case, index, what), stats
        return None, stats

    def _baseline(self, request: Request, instruction_set: str) -> Outcome:
        """The request alone, its prompt in one step, in a pool with room to spare, one operation after another."""
        key = request, instruction_set
        if key not in self._baselines:
            tokens = max(longest_sequence(self._loaded.config), request.max_tokens)
            settings = replace(
                self._base,
                num_threads=1,
                native_plan=False,
                instruction_set=instruction_set,
                max_num_batched_tokens=tokens,
                num_blocks=2 + 2 * -(-tokens // self._base.block_size),
            )
            with self._engine(settings, self._loaded_alone) as engine:
                engine.add_request("alone", request.prompt, request.params)
                collected: list[RequestOutput] = []
                while engine.has_unfinished():
                    collected += engine.step()
            self._baselines[key] = _outcome(collected)
        return self._baselines[key]

    def _drafter(self, case: Case, baselines: Sequence[Outcome]) -> Drafter | None:
        """One that knows how the requests of a case go on, and lies."""
        if case.max_draft_tokens == 0:
            return None
        continuations = {
            arrival.request.seed: Continuation(len(arrival.request.prompt), baseline.token_ids)
            for arrival, baseline in zip(case.arrivals, baselines, strict=True)
        }
        return ScriptedDrafter(continuations, self._loaded.config.text.vocab_size, case.index)

    def _engine(
        self, settings: EngineConfig, loaded: LoadedModel, drafter: Drafter | None = None
    ) -> LLMEngine:
        capacity = plan_capacity(settings, loaded.config, available_memory())
        return LLMEngine(settings, loaded=replace(loaded, capacity=capacity), drafter=drafter)


def first_difference(outcome: Outcome, baseline: Outcome) -> str | None:
    """How a request's outcome differs from that of the same request alone; None when it does not.

    Log-probabilities are compared by their bits. An aborted request must be a prefix of its baseline.
    """
    if baseline.error is not None:
        return f"alone, the request failed: {baseline.error}"
    aborted = outcome.finish_reason == "abort"
    length = len(outcome.token_ids) if aborted else len(baseline.token_ids)
    compared: list[tuple[str, Sequence[object], Sequence[object]]] = [
        ("token_ids", baseline.token_ids[:length], outcome.token_ids),
        ("logprobs", _bits(baseline.logprobs[:length]), _bits(outcome.logprobs)),
    ]
    if outcome.prompt_logprobs is not None or not aborted:
        compared.append(
            (
                "prompt_logprobs",
                _bits(baseline.prompt_logprobs or ()),
                _bits(outcome.prompt_logprobs or ()),
            )
        )
    for name, expected, found in compared:
        if list(expected) != list(found):
            return _describe(name, expected, found)
    if not aborted and (baseline.text, baseline.finish_reason) != (outcome.text, outcome.finish_reason):
        return (
            f"expected {baseline.finish_reason!r} and text {baseline.text!r}, found {outcome.finish_reason!r} "
            f"({outcome.error}) and text {outcome.text!r}"
        )
    return None


def _bits(entries: Sequence[LogprobEntry]) -> list[tuple[object, ...]]:
    """Each entry with its numbers in hexadecimal, so that equal means equal in every bit (also of -0 and NaN)."""
    return [
        (
            entry.token_id,
            _hexadecimal(entry.logprob),
            entry.rank,
            tuple((other.token_id, _hexadecimal(other.logprob)) for other in entry.top),
        )
        for entry in entries
    ]


def _hexadecimal(value: float) -> str:
    return struct.pack(">d", value).hex()


def _describe(name: str, expected: Sequence[object], found: Sequence[object]) -> str:
    at = next(
        (i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b),
        min(len(expected), len(found)),
    )
    return (
        f"{name}[{at}] (of {len(expected)} expected, {len(found)} found): expected "
        f"{expected[at] if at < len(expected) else 'nothing'}, found {found[at] if at < len(found) else 'nothing'}"
    )


def _settings(base: EngineConfig, case: Case) -> EngineConfig:
    return replace(
        base,
        max_num_seqs=case.max_num_seqs,
        max_num_batched_tokens=case.max_num_batched_tokens,
        max_chunk_tokens=case.max_chunk_tokens,
        block_size=case.block_size,
        num_blocks=case.num_blocks,
        policy=case.policy,
        num_threads=case.num_threads,
        instruction_set=case.instruction_set,
        async_scheduling=case.async_scheduling,
        max_draft_tokens=case.max_draft_tokens,
    )


def _drive(engine: LLMEngine, case: Case) -> list[Outcome] | None:
    """Run a case's schedule to its end; None when it makes no progress."""
    limit = STEPS_PER_TOKEN * sum(arrival.request.max_tokens for arrival in case.arrivals)
    last_arrival = max(arrival.add_at for arrival in case.arrivals)
    outputs: list[list[RequestOutput]] = [[] for _ in case.arrivals]
    for step in range(limit):
        if step > last_arrival and not engine.has_unfinished():
            return [_outcome(collected) for collected in outputs]
        for index, arrival in enumerate(case.arrivals):
            if arrival.add_at == step:
                options = RequestOptions(priority=arrival.priority, user=arrival.user)
                engine.add_request(
                    str(index), arrival.request.prompt, arrival.request.params, options=options
                )
            if arrival.abort_at == step:
                engine.abort(str(index))
        for output in engine.step():
            outputs[int(output.request_id)].append(output)
    return None


def _outcome(outputs: Sequence[RequestOutput]) -> Outcome:
    """The deltas of one request joined."""
    return Outcome(
        token_ids=tuple(token for output in outputs for token in output.token_ids),
        text="".join(output.text for output in outputs),
        logprobs=tuple(entry for output in outputs for entry in output.logprobs or ()),
        prompt_logprobs=next((o.prompt_logprobs for o in outputs if o.prompt_logprobs is not None), None),
        finish_reason=outputs[-1].finish_reason if outputs else None,
        error=outputs[-1].error if outputs else None,
    )
