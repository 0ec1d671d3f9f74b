"""Continuous-batching request scheduler in C++20, independent of any tensor library."""

from di_scheduler._native import AllocStatus, BlockPool
from di_scheduler.config import (
    EngineKind,
    FinishReason,
    SchedulerConfig,
    SequenceLimits,
    SequenceOptions,
    StepKind,
    StepPolicy,
)
from di_scheduler.errors import AdmissionError, AdmissionReason, BlockPoolError, ConfigError, StepOrderError
from di_scheduler.results import CommitResult, SchedulerStats, SequenceInfo, SequenceState, StepPlan
from di_scheduler.scheduler import Scheduler

__all__ = [
    "AdmissionError",
    "AdmissionReason",
    "AllocStatus",
    "BlockPool",
    "BlockPoolError",
    "CommitResult",
    "ConfigError",
    "EngineKind",
    "FinishReason",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerStats",
    "SequenceInfo",
    "SequenceLimits",
    "SequenceOptions",
    "SequenceState",
    "StepKind",
    "StepOrderError",
    "StepPlan",
    "StepPolicy",
]
