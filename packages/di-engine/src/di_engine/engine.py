"""The engine: requests in, deltas out, one step at a time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType

import torch
from di_kernels import num_threads, pin_threads, set_instruction_set, set_num_threads, threads_are_pinned
from di_kernels.errors import shown
from di_model.config import ModelConfig
from di_model.tokenizer import Tokenizer
from di_scheduler import (
    AdmissionError,
    CommitResult,
    Scheduler,
    SequenceLimits,
    SequenceOptions,
)
from di_scheduler import FinishReason as SchedulerFinishReason
from di_scheduler.speculation import DraftBudget
from di_spec import (
    Drafter,
    FinishReason,
    SamplingParams,
    TokenBytes,
    child_seed,
)

from di_engine.capacity import Capacity, scheduler_config
from di_engine.config import EngineConfig
from di_engine.delivery import REASONS, Delivery
from di_engine.errors import EngineBusyError, EngineClosedError, RequestError, StepTimeoutError
from di_engine.loading import LoadedModel, load_model
from di_engine.outputs import RequestOutput
from di_engine.pipeline import CompletedStep, StepPipeline
from di_engine.request import (
    Prompt,
    Request,
    RequestOptions,
    check_options,
    check_params,
    check_request_id,
    encode_prompt,
    new_sequence,
    request_ids_of,
    sequence_limits,
)
from di_engine.runner import ModelRunner, StepOffer, StepResult, StepRunner
from di_engine.stats import EngineCounters, EngineStats
from di_engine.step_cost import measured_draft_budget


@dataclass(frozen=True, eq=False)
class _Core:
    """What is released by ``close``."""

    loaded: LoadedModel
    pipeline: StepPipeline
    token_bytes: TokenBytes


class LLMEngine:
    """Runs requests in continuous batches. Any one thread at a time may call it.

    A request ends once, on one path, whatever ends it; its last :class:`RequestOutput` says how. An id is free again
    as soon as its request has ended. A call that is interrupted (Ctrl-C) ends all requests with "abort" and raises; the
    engine can be used on. With ``async_scheduling``, the next step may be on its way when ``step`` returns; nothing of
    it reaches a request that has ended meanwhile.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        loaded: LoadedModel | None = None,
        drafter: Drafter | None = None,
        runner: Callable[[LoadedModel, Drafter | None], StepRunner] = ModelRunner,
    ) -> None:
        """Load the model and allocate its caches.

        Args:
            config: settings.
            loaded: a model to serve instead of the one in ``config.model``.
            drafter: proposes tokens that the next step verifies; None: no speculation.
            runner: makes what computes the steps.

        Raises:
            FileNotFoundError, ValueError: see :func:`~di_engine.loading.load_model`.
            TypeError: ``loaded`` is no model.
        """
        if loaded is not None and not isinstance(loaded, LoadedModel):
            raise TypeError(f"loaded: got {type(loaded).__name__}, allowed: LoadedModel, or None")
        if config.num_threads is not None:
            set_num_threads(config.num_threads)
            torch.set_num_threads(num_threads())  # not what was asked for in a forked child
        with ExitStack() as undo:
            if config.pin_threads and not threads_are_pinned():
                undo.callback(pin_threads, False)
                pin_threads(True)
            if config.instruction_set is not None:
                set_instruction_set(config.instruction_set)
            self.config = config
            loaded = load_model(config) if loaded is None else loaded
            loaded = dataclasses.replace(loaded, native_plan=config.native_plan)
            step_runner = runner(loaded, drafter)
            token_bytes = TokenBytes(loaded.tokenizer.raw)
            speculates = drafter is not None
            self._scheduler_config = scheduler_config(
                config, loaded.capacity, loaded.config, speculates=speculates
            )
            self._step_cost: DraftBudget | None = None
            self._learns_cost = True
            if config.measure_step_cost and speculates:
                self._step_cost = measured_draft_budget(loaded, step_runner, self._scheduler_config, config)
            self._scheduler = self._new_scheduler()
            self._torn = False  # a call was cut off between changes that belong together
            self._stepping = False
            self._counters = EngineCounters()
            self._delivery = Delivery(token_bytes, self._counters, self._finished)
            self._next_seq_id = 0
            self._num_unseeded = 0
            # Last: it may start a thread, which only close() ends.
            pipeline = StepPipeline(step_runner, 2 if config.async_scheduling else 1, config.step_timeout)
            self._open_core: _Core | None = _Core(loaded, pipeline, token_bytes)
            if config.async_scheduling and threads_are_pinned():
                # This thread computed while it loaded the model. It leaves that processor to the one that computes
                # from now on; switched on again, threads take their places with the next part of a loop.
                pin_threads(False)
                pin_threads(True)
            self._undo = undo.pop_all()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._core.loaded.tokenizer

    @property
    def model_config(self) -> ModelConfig:
        """The model's configuration."""
        return self._core.loaded.config

    @property
    def capacity(self) -> Capacity:
        """Lengths and pool sizes in force."""
        return self._core.loaded.capacity

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        options: RequestOptions | None = None,
    ) -> None:
        """Queue a request.

        Args:
            request_id: any string that no running request has.
            prompt: text, or token ids. Text gets BOS unless it begins with it or the tokenizer is "native".
            params: with ``n > 1``, the request has that many choices with seeds of their own.
            options: when it is served; None: first come, first served.

        Raises:
            RequestError: the request cannot be served, ever; ``field`` says what is wrong with it. Nothing is kept.
        """
        core = self._ready()
        if check_request_id(request_id) in self._delivery.requests:
            raise RequestError("request_id", f"{shown(request_id)} is in use by a request that has not ended")
        model = core.loaded.config
        params = check_params(params, model.text.vocab_size)
        scheduling = check_options(options)
        add_bos = model.tokenizer_compatibility == "release"
        prompt_ids = encode_prompt(prompt, core.loaded.tokenizer, add_bos=add_bos)
        limits = sequence_limits(
            params, len(prompt_ids), model.eos_token_id, core.loaded.capacity.max_model_len
        )
        request = Request(request_id, prompt_ids, params)
        tokens = prompt_ids.tolist()
        for index, child in enumerate(self._seeded(params).children()):
            self._next_seq_id += 1
            request.sequences.append(
                new_sequence(self._next_seq_id, index, request, child, tokens, model, core.token_bytes)
            )
        self._enter(request, limits, scheduling)
        self._num_unseeded += params.seed is None
        self._counters.requests_added += 1
        self._counters.prompt_tokens += len(prompt_ids)

    def abort(self, request_ids: str | Iterable[str]) -> int:
        """End requests with finish reason "abort"; returns how many. Unknown and ended ids are passed over."""
        self._ready()
        names = dict.fromkeys(request_ids_of(request_ids))
        running = self._delivery.requests
        found = [running[name] for name in names if name in running]
        with self._whole():
            self._delivery.abort(found)
        return len(found)

    def abort_all(self) -> int:
        """End every request, from whatever state an interruption left the engine in; returns how many."""
        _ = self._core
        with self._whole():
            # A step that was cut off may have left a plan without its commit: a new scheduler has neither.
            self._drop_steps()
            count = self._delivery.settle()
            self._torn = False
        return count

    def step(self) -> list[RequestOutput]:
        """Run one step and return what it adds, with the ends of requests aborted since the last step.

        An exception in the computation ends the requests of that step with "error"; with ``async_scheduling``, a step
        that takes longer than ``step_timeout`` ends all of them so.

        Raises:
            EngineBusyError: another call of this has not returned yet.
            ForkedProcessError: with ``async_scheduling``, in a forked child.
        """
        self._ready()
        if self._stepping:
            raise EngineBusyError
        try:
            self._stepping = True
            self._advance()
        except BaseException:
            self._torn = True
            if self._open_core is not None:
                self.abort_all()
            raise
        finally:
            self._stepping = False
        return self._delivery.take_outputs()

    def has_unfinished(self) -> bool:
        """Whether a step has anything to do or to deliver."""
        core = self._ready()
        return self._delivery.pending or bool(core.pipeline)

    def set_step_cost(self, cost: DraftBudget | None, *, learn: bool = True) -> None:
        """Verify as many drafts a step as pay by this cost; None: all of them. It changes time only.

        Args:
            cost: the engine's own from now on.
            learn: correct it by what steps take.
        """
        self._ready()
        self._step_cost, self._learns_cost = cost, learn
        self._scheduler.set_step_cost(cost)

    def stats(self) -> EngineStats:
        """Counts and occupancy."""
        self._ready()
        return EngineStats(self._counters.snapshot(), self._scheduler.stats())

    def close(self) -> None:
        """Give up all requests, the caches and the model, and let threads move again if this engine has pinned them.
        Calling it again does nothing; any other use raises EngineClosedError.

        Raises:
            StepTimeoutError: the step that is computed did not end within ``step_timeout``.
        """
        core, self._open_core = self._open_core, None
        self._delivery.clear()
        with self._undo:
            if core is not None:
                core.pipeline.close()

    def __enter__(self) -> LLMEngine:
        self._ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _core(self) -> _Core:
        if self._open_core is None:
            raise EngineClosedError
        return self._open_core

    def _ready(self) -> _Core:
        """The core, with everything around it whole: what an interruption left is cleared away first."""
        core = self._core
        if self._torn:
            self.abort_all()
        return core

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Around changes that belong together: if they are cut off, the next call puts the engine in order."""
        try:
            yield
        except BaseException:
            self._torn = True
            raise

    def _enter(self, request: Request, limits: SequenceLimits, options: SequenceOptions) -> None:
        """Put a request's sequences into the queue. Raises RequestError when they can never run."""
        arrival = time.monotonic()
        refused = None
        with self._whole():
            try:
                for sequence in request.sequences:
                    self._scheduler.add(sequence.seq_id, request.prompt_ids, limits, arrival, options)
            except AdmissionError as error:
                refused = error
                for sequence in request.sequences:
                    self._scheduler.abort(sequence.seq_id)
            else:
                self._delivery.enter(request)
        if refused is not None:
            raise RequestError("prompt", str(refused)) from refused

    def _new_scheduler(self) -> Scheduler:
        scheduler = Scheduler(self._scheduler_config)
        scheduler.set_step_cost(self._step_cost)
        return scheduler

    def _finished(self, seq_id: int, reason: SchedulerFinishReason) -> None:
        """A sequence has ended. The scheduler that is in force now may have done it by itself."""
        self._scheduler.finish(seq_id, reason)

    def _drop_steps(self) -> None:
        """Forget what is planned and computed: a new scheduler knows of no sequence."""
        self._core.pipeline.clear()
        self._scheduler = self._new_scheduler()

    def _seeded(self, params: SamplingParams) -> SamplingParams:
        if params.seed is not None or self.config.seed is None:
            return params
        return dataclasses.replace(params, seed=child_seed(self.config.seed, self._num_unseeded + 1))

    def _advance(self) -> None:
        """Wait for the oldest step and commit it, with the next one planned and on its way as soon as may be."""
        pipeline, scheduler = self._core.pipeline, self._scheduler
        while len(pipeline) < pipeline.depth and self._launch():
            pass
        try:
            step = pipeline.collect()
        except StepTimeoutError as error:
            self._lose_steps(error)
            return
        if scheduler is not self._scheduler:
            # abort_all came in between: the plans and their sequences are gone.
            pipeline.clear()
            return
        if step is None:
            return
        if isinstance(step.result, Exception):
            self._commit_failure(step, step.result)
        else:
            self._commit(step, step.result)
        pipeline.release()

    def _launch(self) -> bool:
        """Plan a step and send it on its way; whether there was one to plan."""
        pipeline = self._core.pipeline
        plan = self._scheduler.plan(time.monotonic())
        if plan.num_expired > 0:
            for seq_id in plan.expired.tolist():
                self._delivery.end(self._delivery.sequences[seq_id], FinishReason.DEADLINE)
        if plan.num_seqs == 0:
            return False
        self._counters.overlapped_steps += bool(pipeline)
        pipeline.submit(plan, [self._delivery.sequences[seq_id] for seq_id in plan.seq_ids.tolist()])
        return True

    def _lose_steps(self, error: StepTimeoutError) -> None:
        """End everything: a step that may still write to the caches leaves nothing to go on from."""
        self._counters.failed_steps += len(self._core.pipeline)
        self._drop_steps()
        for sequence in tuple(self._delivery.sequences.values()):
            self._delivery.end(sequence, FinishReason.ERROR, str(error))

    def _commit_failure(self, step: CompletedStep, error: Exception) -> None:
        """End every sequence of a step that was not computed: its cache holds nobody knows what."""
        self._counters.failed_steps += 1
        message = f"the step failed: {type(error).__name__}: {error}"
        for sequence in step.sequences:
            if sequence.seq_id in self._delivery.sequences:
                self._delivery.end(sequence, FinishReason.ERROR, message)
        self._commit_offer(step.offer)

    def _commit(self, step: CompletedStep, result: StepResult) -> None:
        """Hand the step's tokens to the scheduler, and what it keeps of them to the outputs."""
        if result.prompt_logprobs or result.not_finite:
            self._delivery.take_prompts(step.sequences, result)
        if self._step_cost is not None and self._learns_cost:
            self._learn_cost(step, self._step_cost)
        ends = self._commit_offer(step.offer).ends
        for (seq_id, count, finish), sampled in zip(ends, result.sampled, strict=True):
            sequence = self._delivery.sequences.get(seq_id)
            if sequence is not None:  # else it ended before this commit
                self._delivery.take(sequence, sampled, count, REASONS[finish])

    def _learn_cost(self, step: CompletedStep, cost: DraftBudget) -> None:
        """Correct the cost of steps by one of decodes alone, which is what the cost is about."""
        plan = step.plan
        if plan.num_rows == 0 or not plan.decodes.all():
            return
        cost.observe(
            num_seqs=plan.num_seqs,
            rows=plan.num_rows,
            forward_ms=step.forward_ms,
            sampler_ms=step.sample_ms,
        )
        self._scheduler.set_step_cost(cost)

    def _commit_offer(self, offer: StepOffer) -> CommitResult:
        return self._scheduler.commit(
            offer.tokens, offer.counts, offer.failed, offer.drafts, offer.confidences, time.monotonic()
        )
