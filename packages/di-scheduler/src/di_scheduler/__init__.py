"""Continuous-batching request scheduler in C++20, independent of any tensor library."""

from di_scheduler._native import AllocStatus, BlockPool, CommitResult, StepPlan
from di_scheduler.config import (
    EngineKind,
    FinishReason,
    SchedulerConfig,
    SequenceLimits,
    SequenceOptions,
    StepKind,
    StepPolicy,
)
from di_scheduler.cost_curve import CostCurve, CurveCache, CurveKey, measure_curve
from di_scheduler.errors import AdmissionError, AdmissionReason, BlockPoolError, ConfigError, StepOrderError
from di_scheduler.flops import FlopsEstimator, ModelShape
from di_scheduler.lockstep import BoundedWaits, GroupIdle, GroupStopped, LockstepPlanner, PlannedStep
from di_scheduler.mfu import MfuMeter
from di_scheduler.results import SchedulerStats, SequenceInfo, SequenceState
from di_scheduler.scheduler import Scheduler
from di_scheduler.speculation import DraftBudget, SpeculationError
from di_scheduler.voting import InProcessVote, Vote, VoteError, VoteTimeoutError

__all__ = [
    "AdmissionError",
    "AdmissionReason",
    "AllocStatus",
    "BlockPool",
    "BlockPoolError",
    "BoundedWaits",
    "CommitResult",
    "ConfigError",
    "CostCurve",
    "CurveCache",
    "CurveKey",
    "DraftBudget",
    "EngineKind",
    "FinishReason",
    "FlopsEstimator",
    "GroupIdle",
    "GroupStopped",
    "InProcessVote",
    "LockstepPlanner",
    "MfuMeter",
    "ModelShape",
    "PlannedStep",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerStats",
    "SequenceInfo",
    "SequenceLimits",
    "SequenceOptions",
    "SequenceState",
    "SpeculationError",
    "StepKind",
    "StepOrderError",
    "StepPlan",
    "StepPolicy",
    "Vote",
    "VoteError",
    "VoteTimeoutError",
    "measure_curve",
]
