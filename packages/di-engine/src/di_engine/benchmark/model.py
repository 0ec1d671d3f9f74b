"""``di bench model``: steps of the whole engine, and what of them is spent outside kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from di_kernels import ceilings as machine
from di_kernels import num_threads
from di_model.config import ModelConfig
from di_model.model import Model
from di_spec import SamplingParams

from di_engine.benchmark.layer import stored_tensors
from di_engine.benchmark.measure import (
    DISTURBED,
    DotCeiling,
    as_bytes,
    dot_peaks,
    using_threads,
)
from di_engine.benchmark.model_work import ModelWork, StepShape
from di_engine.benchmark.native_clock import NativeClock, native_clock
from di_engine.benchmark.timing import Least, LeastTime, Timing, summarize_timings, without_collection
from di_engine.benchmark.work import Ceilings, Work
from di_engine.config import EngineConfig
from di_engine.engine import LLMEngine
from di_engine.loading import LoadedModel, load_model

PROMPT_TOKENS = 128
PREFILL_TOKENS = 512
BATCHES = (1, 16)
WARM_UP_STEPS = 4
CEILING_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step of the engine."""

    step: Timing
    """``LLMEngine.step`` as a whole."""
    outside: Timing
    """The same without the time inside native calls: planning, batches, crossing over, commit, text."""
    disturbed: bool
    """Whether even in the least step a thread had to wait for a processor."""


@dataclass(frozen=True, slots=True)
class ModelTiming:
    """A step of one shape. All figures are of least times, also the share of one in another.

    Attributes:
        model: what it was measured on.
        name: decode or prefill.
        sequences: in the step.
        tokens: that the step computes.
        work: of the step, with as many experts as are expected to be hit.
        ceilings: measured in the same run.
        disturbed: whether other work took so much that the figures mean nothing.
    """

    model: str
    name: str
    sequences: int
    tokens: int
    threads: int
    times: StepTimes
    work: Work
    ceilings: Ceilings
    disturbed: bool

    @property
    def tokens_per_second(self) -> float:
        """Of a step."""
        return self.tokens / self.times.step.minimum

    @property
    def of_floor(self) -> float:
        """Share of the ceiling that binds."""
        return self.ceilings.floor(self.work) / self.times.step.minimum

    @property
    def outside_share(self) -> float:
        """Part of a step that is outside kernels."""
        return self.times.outside.minimum / self.times.step.minimum


def measure_model(
    name: str,
    directory: Path,
    threads: int,
    steps: int,
    progress: Callable[[ModelTiming], None] = lambda timing: None,
) -> list[ModelTiming]:
    """Decode steps of every batch size of :data:`BATCHES`, and prefill steps, ``steps`` of each."""
    config = ModelConfig.from_file(directory)
    work = ModelWork(config)
    found = []
    with using_threads(threads), native_clock() as clock:
        settings = EngineConfig(
            model=directory,
            max_model_len=max(PROMPT_TOKENS + steps + WARM_UP_STEPS, PREFILL_TOKENS) + 8,
            max_num_seqs=max(BATCHES),
            max_num_batched_tokens=max(BATCHES) * PROMPT_TOKENS,
            load_draft=False,
        )
        loaded = load_model(settings)
        shapes = [StepShape(batch, PROMPT_TOKENS, 1) for batch in BATCHES] + [StepShape(1, 0, PREFILL_TOKENS)]
        for shape in shapes:
            ceilings, ceilings_disturbed = measure_ceilings(loaded)
            times = _EngineLoop(settings, loaded, clock).run(shape, steps)
            timing = ModelTiming(
                model=name,
                name="decode" if shape.rows == 1 else "prefill",
                sequences=shape.sequences,
                tokens=shape.num_rows,
                threads=threads,
                times=times,
                work=work.step(shape),
                ceilings=ceilings,
                disturbed=times.disturbed or ceilings_disturbed,
            )
            found.append(timing)
            progress(timing)
    return found


def settle(found: Sequence[ModelTiming]) -> list[ModelTiming]:
    """The timings of a run with the ceilings that its best moments had: those of one model, read by so many threads,
    are the same for every step. What was measured while the dot was far from its peak was disturbed."""
    peaks = dot_peaks((timing.threads, timing.ceilings.dot) for timing in found)
    reads: dict[tuple[str, int], float] = {}
    for timing in found:
        key = timing.model, timing.threads
        reads[key] = max(reads.get(key, 0.0), timing.ceilings.read)
    return [
        replace(
            timing,
            ceilings=Ceilings(reads[timing.model, timing.threads], peaks[timing.threads]),
            disturbed=timing.disturbed or timing.ceilings.dot < DISTURBED * peaks[timing.threads],
        )
        for timing in found
    ]


def measure_ceilings(loaded: LoadedModel) -> tuple[Ceilings, bool]:
    """A plain read of all of the model's weights, and the dot; and whether other work disturbed them."""
    model = loaded.model
    assert isinstance(model, Model)
    buffers = as_bytes(*stored_tensors(model.weights))
    alone = num_threads() == 1
    reads = Least([machine.MemoryRead(buffers)], alone)
    dots = DotCeiling(alone)
    for _ in range(CEILING_ROUNDS):
        reads.round()
        dots.round()
    read = sum(buffer.numel() // 64 * 64 for buffer in buffers) / reads.total
    return Ceilings(read, dots.flops), reads.disturbed or dots.disturbed


class _EngineLoop:
    """An engine whose steps are of one shape."""

    def __init__(self, settings: EngineConfig, loaded: LoadedModel, clock: NativeClock) -> None:
        self._engine = LLMEngine(settings, loaded=loaded)
        self._vocabulary = loaded.config.text.vocab_size
        self._clock = clock
        self._random = np.random.default_rng(0)
        self._requests = 0

    def run(self, shape: StepShape, steps: int) -> StepTimes:
        """Time ``steps`` steps."""
        decodes = shape.rows == 1
        if decodes:
            for _ in range(shape.sequences):
                self._add(shape.start, WARM_UP_STEPS + steps + 1)
            self._engine.step()  # all prompts fit into one
        whole: list[float] = []
        outside: list[float] = []
        least = LeastTime()
        with without_collection():
            for number in range(WARM_UP_STEPS + steps):
                if not decodes:
                    self._add(shape.rows, 1)
                least.begin()
                self._clock.read()
                start = time.perf_counter()
                self._engine.step()
                taken = time.perf_counter() - start
                if number >= WARM_UP_STEPS:
                    least.end(taken)
                    whole.append(taken)
                    outside.append(taken - self._clock.read())
        while self._engine.has_unfinished():
            self._engine.step()
        self._engine.close()
        return StepTimes(summarize_timings(whole), summarize_timings(outside), least.disturbed)

    def _add(self, tokens: int, max_tokens: int) -> None:
        prompt = self._random.integers(3, self._vocabulary, tokens).tolist()
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, seed=0)
        self._engine.add_request(str(self._requests), prompt, params)
        self._requests += 1
