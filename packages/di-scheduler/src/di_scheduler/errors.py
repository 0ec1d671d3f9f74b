"""What the scheduler raises."""

from typing import Literal

AdmissionReason = Literal[
    "decode_only",
    "duplicate_id",
    "empty_prompt",
    "image_too_large",
    "invalid_arrival",
    "invalid_checkpoints",
    "invalid_id",
    "invalid_images",
    "invalid_params",
    "invalid_prompt_len",
    "invalid_token",
    "nothing_left",
    "pool_too_small",
    "prefill_only",
    "prompt_too_long",
]


class ConfigError(ValueError):
    """A setting of a configuration, limits or options that is out of range; the message names it."""


class AdmissionError(ValueError):
    """A sequence that a scheduler refuses to take. Nothing of it is kept.

    `reason` says why in one word: "pool_too_small" and "prompt_too_long" mean that the prompt and one generated token
    could never fit the block pool or `max_model_len`, "image_too_large" that no step could hold an image whole,
    "decode_only" and "prefill_only" that this kind of engine does not take sequences this way, "nothing_left" that an
    imported sequence is complete; the others name a malformed argument.
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
