"""What the released model should reach on a machine, from shares of the ceilings that were measured on another."""

from __future__ import annotations

from dataclasses import dataclass

from di_model.config import ModelConfig
from di_model.tensors import Part, expected_tensors

from di_engine.benchmark.model_work import ModelWork, StepShape
from di_engine.benchmark.work import Ceilings

PREFILL_ROWS = 2048


@dataclass(frozen=True, slots=True)
class Shares:
    """Of what binds, that steps reach: 1 is as fast as the machine reads or computes."""

    decode_1: float
    decode_16: float
    prefill: float


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a checkpoint by where they have to be."""

    memory: int
    """Weights that every step may need: all but the Engram tables."""
    tables: int
    """Engram tables, of which a token reads a few rows: they may stay on disk."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Tokens a second."""

    decode_1: float
    """One sequence."""
    decode_16: float
    """Sixteen sequences, all together."""
    prefill: float


def footprint(config: ModelConfig) -> Footprint:
    """Of the whole checkpoint without vision and draft parts."""
    specs = [
        spec
        for spec in expected_tensors(config).values()
        if spec.part is not Part.VISION and not spec.name.startswith("mtp.")
    ]
    tables = sum(spec.nbytes for spec in specs if spec.part is Part.ENGRAM_TABLE)
    return Footprint(sum(spec.nbytes for spec in specs) - tables, tables)


def predict(work: ModelWork, ceilings: Ceilings, shares: Shares, context: int) -> Prediction:
    """Decode behind ``context`` tokens, and prefill in steps of :data:`PREFILL_ROWS` rows up to there.

    Args:
        work: counts of the model.
        ceilings: read rate and dot peak of the machine, all cores together.
        shares: that steps reach.
        context: tokens before a decode step.
    """

    def rate(shape: StepShape, share: float) -> float:
        return shape.num_rows * share / ceilings.floor(work.step(shape))

    rows = min(PREFILL_ROWS, context)
    return Prediction(
        decode_1=rate(StepShape(1, context, 1), shares.decode_1),
        decode_16=rate(StepShape(16, context, 1), shares.decode_16),
        prefill=rate(StepShape(1, context - rows, rows), shares.prefill),
    )
