"""What the scheduler raises."""

from typing import Literal

AdmissionReason = Literal[
    "duplicate_id",
    "empty_prompt",
    "invalid_arrival",
    "invalid_id",
    "invalid_token",
    "pool_too_small",
    "prompt_too_long",
]


class ConfigError(ValueError):
    """A setting of `SchedulerConfig` or `SequenceLimits` that is out of range; the message names it."""


class AdmissionError(ValueError):
    """A sequence that `Scheduler.add` refuses. Nothing of it is kept.

    `reason` says why in one word: "pool_too_small" and "prompt_too_long" mean that the prompt and one generated token
    could never fit the block pool or `max_model_len`; the others name a malformed argument.
    """

    reason: AdmissionReason

    def __init__(self, reason: AdmissionReason, message: str) -> None:
        super().__init__(reason, message)  # as they came, so that the error can be pickled
        self.reason = reason
        self._message = message

    def __str__(self) -> str:
        return self._message


class StepOrderError(RuntimeError):
    """`plan` or `commit` called out of turn. The scheduler is unchanged."""


class BlockPoolError(RuntimeError):
    """An operation that a pool's reference counts forbid. The pool is unchanged."""
