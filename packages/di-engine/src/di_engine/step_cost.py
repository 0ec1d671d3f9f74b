"""What rows cost on this machine, measured at start: by it the scheduler decides how many drafts pay.

The steps that are timed stand for steps of decodes without being some: they are forward passes, without sampling, of
short prompts, each of as many rows as a decode with all of its drafts has, over an empty context. A decode reads a long
context as well, which costs time by the sequence. What the engine learns from its steps corrects the curve by the row,
so with long contexts drafts look dearer than they are.
"""

from __future__ import annotations

import hashlib
import platform
from dataclasses import replace

import numpy as np
from di_kernels import num_threads
from di_scheduler import Scheduler, SchedulerConfig, SequenceLimits
from di_scheduler.cost_curve import CostCurve, CurveCache, CurveKey, measure_curve
from di_scheduler.speculation import DraftBudget

from di_engine.config import EngineConfig
from di_engine.loading import LoadedModel
from di_engine.processors import processor_name
from di_engine.runner import StepRunner
from di_engine.versions import installed_versions

DAYS_30 = 30 * 86400.0


def measured_draft_budget(
    loaded: LoadedModel,
    runner: StepRunner,
    scheduler: SchedulerConfig,
    config: EngineConfig,
) -> DraftBudget:
    """The budget by a curve of the runner's forward pass, from 1 row to as many as a step of decodes has at most.

    Nothing else may use the runner meanwhile: blocks and slots are written to.

    Args:
        loaded: the model that the runner runs.
        runner: computes the steps that are timed.
        scheduler: settings of the scheduler that will plan the steps.
        config: settings of the engine; ``curve_directory`` is where the curve is kept and looked for.
    """
    measurement = _Measurement(runner, scheduler)
    sizes = ladder(measurement.most_rows)

    def curve() -> CostCurve:
        return measure_curve(measurement.run, sizes, stepped=False)

    if config.curve_directory is None:
        return DraftBudget(curve())
    key = curve_key(loaded, config, sizes)
    return DraftBudget(CurveCache(config.curve_directory, ttl_seconds=DAYS_30).load_or_measure(key, curve))


def ladder(most: int) -> tuple[int, ...]:
    """Sizes to measure: powers of two below ``most``, and that."""
    powers = [1 << bit for bit in range(most.bit_length()) if 1 << bit < most]
    return (*powers, most)


def curve_key(loaded: LoadedModel, config: EngineConfig, sizes: tuple[int, ...]) -> CurveKey:
    """What a curve depends on: the machine and its threads, the software, the model, its numerics, and what decides how
    rows are spread over sequences and blocks."""
    model = hashlib.sha256(repr(loaded.config).encode()).hexdigest()
    spread = f"{config.max_draft_tokens} drafts, blocks of {config.block_size}"
    return CurveKey(
        device=f"cpu {platform.machine()} {processor_name()}, {num_threads()} threads",
        software=tuple((each.name, each.version or "none") for each in installed_versions()),
        model=f"{model} {config.numerics.name} {type(loaded.model).__name__}, {spread}",
        sizes=sizes,
        stepped=False,
    )


class _Measurement:
    """Runs steps of made-up sequences on a runner that serves nobody."""

    def __init__(self, runner: StepRunner, scheduler: SchedulerConfig) -> None:
        self._runner = runner
        self._config = replace(scheduler, max_chunk_tokens=None, max_steps_in_flight=1, watermark=0.0)
        longest = min(scheduler.max_model_len, (scheduler.num_blocks - 1) * scheduler.block_size)
        self._rows_each = min(1 + scheduler.max_draft_tokens, longest - 1)  # a token is left to generate
        blocks_each = -(-self._rows_each // scheduler.block_size)
        # A sequence is admitted while one more block is free for each that runs.
        room = max(1, (scheduler.num_blocks - 1) // (blocks_each + 1))
        self._most_seqs = min(scheduler.max_num_seqs, room)

    @property
    def most_rows(self) -> int:
        """Rows of the largest step that the pool and the step's budget allow."""
        return min(self._config.max_num_batched_tokens, self._most_seqs * self._rows_each)

    def run(self, rows: int) -> None:
        """One forward pass of ``rows`` rows, spread over as many prompts as can be."""
        count = min(rows, self._most_seqs)
        scheduler = Scheduler(self._config)
        for seq_id in range(count):
            length = rows // count + (seq_id < rows % count)
            scheduler.add(seq_id, np.zeros(length, dtype=np.int32), SequenceLimits(max_tokens=1))
        self._runner.forward(scheduler.plan(), ())
