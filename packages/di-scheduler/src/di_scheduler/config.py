"""Settings of a scheduler and of one sequence, checked when they are made."""

import enum
from dataclasses import dataclass

from di_scheduler._checks import check_int
from di_scheduler.errors import ConfigError


class StepPolicy(enum.Enum):
    """Whether a step may hold decode rows and prefill rows together."""

    MIXED = "mixed"
    """Decode rows and prefill chunks share the row budget of a step."""
    HOMOGENEOUS = "homogeneous"
    """A step holds one kind; the kinds take turns while both have work."""


class FinishReason(enum.IntEnum):
    """Why a sequence ended."""

    NONE = 0
    """It has not ended."""
    STOP = 1
    """An end-of-sequence id was generated."""
    STOP_TOKEN = 2
    """One of `SequenceLimits.stop_token_ids` was generated."""
    STOP_STRING = 3
    """The caller found a stop string and called `Scheduler.finish`."""
    LENGTH = 4
    """`max_tokens`, `max_model_len` or the size of the block pool was reached."""
    ABORT = 5
    """The caller gave it up."""
    ERROR = 6
    """The caller reported a failure, or committed something impossible for it."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Sizes and policy of one scheduler.

    Raises `ConfigError` naming the first setting that is out of range. Two bounds tie settings together:
    `num_slots > max_num_seqs`, so that a sequence that may run also finds a slot, and `max_num_batched_tokens >=
    max_num_seqs`, so that decoding alone can never fill a step and starve prefill.
    """

    num_blocks: int
    """Blocks in the cache pool. Block 0 is the null block; `num_blocks - 1` are usable."""
    num_slots: int
    """State slots. Slot 0 is the null slot."""
    block_size: int = 128
    """Tokens per block."""
    max_num_seqs: int = 256
    """Sequences that may hold a slot at once."""
    max_num_batched_tokens: int = 2048
    """Rows of one step."""
    max_chunk_tokens: int | None = None
    """Rows of one sequence's prefill in one step; None: only the step's budget limits it."""
    max_model_len: int = 4096
    """Prompt and generated tokens of one sequence."""
    max_draft_tokens: int = 0
    """Rows beyond the first in a decode step. Only 0 for now: speculation is not built yet."""
    lookback: int = 3
    """Tokens before `q_start` handed out with each plan."""
    policy: StepPolicy = StepPolicy.MIXED
    """Whether a step may hold decode rows and prefill rows together."""

    def __post_init__(self) -> None:
        check_int("num_blocks", self.num_blocks, 2)
        check_int("num_slots", self.num_slots, 2)
        check_int("block_size", self.block_size, 1)
        check_int("max_num_seqs", self.max_num_seqs, 1)
        check_int("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        if self.max_chunk_tokens is not None:
            check_int("max_chunk_tokens", self.max_chunk_tokens, 1)
        check_int("max_model_len", self.max_model_len, 2)
        check_int("max_draft_tokens", self.max_draft_tokens, 0, 0)
        check_int("lookback", self.lookback, 0)
        if not isinstance(self.policy, StepPolicy):
            raise ConfigError(f"policy must be a StepPolicy, got {self.policy!r}")
        if self.num_slots <= self.max_num_seqs:
            raise ConfigError(
                f"num_slots must be at least max_num_seqs + 1 = {self.max_num_seqs + 1} (slot 0 is reserved), "
                f"got {self.num_slots}"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens must be at least max_num_seqs = {self.max_num_seqs}, one row for each "
                f"sequence, got {self.max_num_batched_tokens}"
            )


@dataclass(frozen=True, slots=True)
class SequenceLimits:
    """When one sequence ends by itself. Raises `ConfigError` naming the first field that is out of range."""

    max_tokens: int
    """Generated tokens; the sequence ends with LENGTH when it has them."""
    min_tokens: int = 0
    """Tokens that must precede a stopping id: until then, such ids are kept like any other token."""
    eos_token_ids: tuple[int, ...] = ()
    """Ids that end the sequence with STOP."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the sequence with STOP_TOKEN. `ignore_eos` does not touch them."""
    ignore_eos: bool = False
    """Treat `eos_token_ids` like any other token."""

    def __post_init__(self) -> None:
        check_int("max_tokens", self.max_tokens, 1)
        check_int("min_tokens", self.min_tokens, 0, self.max_tokens)
        for name, ids in (("eos_token_ids", self.eos_token_ids), ("stop_token_ids", self.stop_token_ids)):
            if not isinstance(ids, tuple):
                raise ConfigError(f"{name} must be a tuple of token ids, got {ids!r}")
            for i, token_id in enumerate(ids):
                check_int(f"{name}[{i}]", token_id, 0)
        if not isinstance(self.ignore_eos, bool):
            raise ConfigError(f"ignore_eos must be True or False, got {self.ignore_eos!r}")
