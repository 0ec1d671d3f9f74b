"""Settings of a scheduler and of one sequence, checked when they are made."""

import enum
import numbers
from dataclasses import dataclass

from di_scheduler._checks import INT32_MAX, check_int, keep_int, keep_number
from di_scheduler.errors import ConfigError


class StepPolicy(enum.Enum):
    """Whether a step may hold decode rows and prefill rows together."""

    MIXED = "mixed"
    """Decode rows and prefill chunks share the row budget of a step."""
    HOMOGENEOUS = "homogeneous"
    """A step holds one kind; the kinds take turns while both have work."""


class StepKind(enum.IntEnum):
    """What one plan may hold."""

    ANY = 0
    """What the policy gives."""
    DECODE = 1
    PREFILL = 2


class EngineKind(enum.IntEnum):
    """Which part of a sequence's life an engine serves."""

    NORMAL = 0
    PREFILL_ONLY = 1
    """Prompts and their first tokens; finished prompts are handed over."""
    DECODE_ONLY = 2
    """Sequences that were imported. One that is preempted ends: its prompt cannot be computed again here."""


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
    """The caller reported a failure, committed something impossible for it, or a transfer of it failed."""
    DEADLINE = 7
    """`SequenceOptions.deadline` passed."""
    PREEMPTED = 8
    """It lost its cache in an engine that cannot recompute it."""
    HANDED_OVER = 9
    """Its cache was transferred to another engine."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Sizes and policy of one scheduler.

    Raises `ConfigError` naming the first setting that is out of range. Three bounds tie settings together:
    `num_slots > max_num_seqs`, so that a sequence that may run also finds a slot, `max_num_batched_tokens >=
    max_num_seqs - 1 + chunk_align`, so that decoding alone can never fill a step and starve prefill, and
    `max_chunk_tokens >= chunk_align`.
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
    """Most draft rows behind the first row of a decode."""
    max_steps_in_flight: int = 1
    """1: plan and commit take turns. 2: a step can be planned while the one before it is computed."""
    max_step_context: int | None = None
    """Sum of the end positions of a step's prefill pieces, which bounds the work of attention; None: no bound."""
    chunk_align: int = 1
    """Chunks that stop short of their prompt are multiples of this (context parallelism: twice the ranks)."""
    watermark: float = 0.0
    """Share of the usable blocks that stays free when a sequence is admitted; at least 0, below 1."""
    max_overtakes: int = 64
    """Admissions of one user's later sequences past one that is not ready."""
    lookback: int = 3
    """Tokens before `q_start` handed out with each plan."""
    num_params: int = 0
    """Columns of `SequenceOptions.params`."""
    policy: StepPolicy = StepPolicy.MIXED
    """Whether a step may hold decode rows and prefill rows together."""
    kind: EngineKind = EngineKind.NORMAL
    """Which part of a sequence's life is served."""

    def __post_init__(self) -> None:
        keep_int(self, "num_blocks", 2)
        keep_int(self, "num_slots", 2)
        keep_int(self, "block_size", 1)
        keep_int(self, "max_num_seqs", 1)
        keep_int(self, "max_num_batched_tokens", 1)
        keep_int(self, "chunk_align", 1)
        if self.max_chunk_tokens is not None:
            keep_int(self, "max_chunk_tokens", self.chunk_align)
        keep_int(self, "max_model_len", 2)
        keep_int(self, "max_draft_tokens", 0, 1024)
        keep_int(self, "max_steps_in_flight", 1, 2)
        if self.max_step_context is not None:
            keep_int(self, "max_step_context", 1, 2**62)
        keep_number(self, "watermark")
        if not 0 <= self.watermark < 1:
            raise ConfigError(f"watermark must be at least 0 and below 1, got {self.watermark!r}")
        keep_int(self, "max_overtakes", 0)
        keep_int(self, "lookback", 0, 1024)
        keep_int(self, "num_params", 0, 1024)
        _check_member("policy", self.policy, StepPolicy)
        _check_member("kind", self.kind, EngineKind)
        self._check_ties()

    def _check_ties(self) -> None:
        if self.num_slots <= self.max_num_seqs:
            raise ConfigError(
                f"num_slots must be at least max_num_seqs + 1 = {self.max_num_seqs + 1} (slot 0 is reserved), "
                f"got {self.num_slots}"
            )
        least = self.max_num_seqs - 1 + self.chunk_align
        if self.max_num_batched_tokens < least:
            raise ConfigError(
                f"max_num_batched_tokens must be at least max_num_seqs - 1 + chunk_align = {least}, one row for each "
                f"other sequence and a chunk, got {self.max_num_batched_tokens}"
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
        keep_int(self, "max_tokens", 1)
        keep_int(self, "min_tokens", 0, self.max_tokens)
        for name, ids in (("eos_token_ids", self.eos_token_ids), ("stop_token_ids", self.stop_token_ids)):
            if not isinstance(ids, tuple):
                raise ConfigError(f"{name} must be a tuple of token ids, got {ids!r}")
            kept = tuple(check_int(f"{name}[{i}]", token_id, 0) for i, token_id in enumerate(ids))
            object.__setattr__(self, name, kept)
        if not isinstance(self.ignore_eos, bool):
            raise ConfigError(f"ignore_eos must be True or False, got {self.ignore_eos!r}")


@dataclass(frozen=True, slots=True)
class SequenceOptions:
    """How one sequence is treated. Raises `ConfigError` naming the first field that is out of range.

    Checkpoints and images are checked against the prompt when the sequence is added.
    """

    priority: int = 0
    """Its class: a lower number goes first, strictly."""
    user: int = 0
    """Whose share of the class it takes, at least 0."""
    weight: float = 1.0
    """Of that share: each of its tokens counts as 1 / weight. More than 0."""
    ready: bool = True
    """False: it waits for `Scheduler.set_ready`, as for a grammar to compile or an image to fetch."""
    deadline: float | None = None
    """Time on the caller's clock at which it ends with DEADLINE if it has not ended before."""
    checkpoints: tuple[int, ...] = ()
    """Positions at which a chunk of its prefill must end, ascending."""
    images: tuple[tuple[int, int], ...] = ()
    """(first position, tokens) of images, ascending and apart, which no chunk cuts."""
    params: tuple[float, ...] = ()
    """`num_params` numbers of the caller's, handed out with each plan."""

    def __post_init__(self) -> None:
        keep_int(self, "priority", -INT32_MAX)
        keep_int(self, "user", 0, 2**63 - 1)
        keep_number(self, "weight")
        if not 1e-6 <= self.weight <= 1e6:
            raise ConfigError(f"weight must be from 1e-6 to 1e6, got {self.weight!r}")
        if not isinstance(self.ready, bool):
            raise ConfigError(f"ready must be True or False, got {self.ready!r}")
        if self.deadline is not None:
            keep_number(self, "deadline")
        _check_tuple("checkpoints", self.checkpoints)
        kept = tuple(check_int(f"checkpoints[{i}]", each, 0) for i, each in enumerate(self.checkpoints))
        object.__setattr__(self, "checkpoints", kept)
        _check_tuple("images", self.images)
        object.__setattr__(self, "images", tuple(_image(i, each) for i, each in enumerate(self.images)))
        _check_tuple("params", self.params)
        object.__setattr__(self, "params", tuple(_param(i, each) for i, each in enumerate(self.params)))


def _image(i: int, image: object) -> tuple[int, int]:
    if not isinstance(image, tuple) or len(image) != 2:
        raise ConfigError(f"images[{i}] must be a pair (first position, tokens), got {image!r}")
    return check_int(f"images[{i}][0]", image[0], 0), check_int(f"images[{i}][1]", image[1], 0)


def _param(i: int, value: object) -> float:
    """NaN and infinity are the caller's business; what is no number is not."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigError(f"params[{i}] must be a number, got {value!r}")
    try:
        return float(value)
    except OverflowError as error:
        raise ConfigError(f"params[{i}] must be a number that a float holds, got {value!r}") from error


def _check_tuple(name: str, value: object) -> None:
    if not isinstance(value, tuple):
        raise ConfigError(f"{name} must be a tuple, got {value!r}")


def _check_member(name: str, value: object, kind: type[enum.Enum]) -> None:
    if not isinstance(value, kind):
        raise ConfigError(f"{name} must be a {kind.__name__}, got {value!r}")
