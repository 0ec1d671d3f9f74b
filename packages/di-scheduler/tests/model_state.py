"""What the Python model of the scheduler keeps: sequences, pieces of plans, pools, transfers.

Together with `model_queue`, `model_drafts`, `model_plan`, `model_commit` and `model` this is docs/interfaces.md once
more, in plain Python: lists that are searched from the start, nothing cached.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from di_scheduler import FinishReason, SchedulerConfig, SequenceLimits, SequenceOptions, SequenceState


@dataclass(eq=False)  # compared by identity
class ModelSequence:
    seq_id: int
    order: int
    prompt_len: int
    tokens: list[int]
    limits: SequenceLimits
    options: SequenceOptions
    arrival: float
    added_at: int  # steps planned before it came
    ready: bool = True
    state: SequenceState = SequenceState.WAITING
    finish: FinishReason = FinishReason.NONE
    computed: int = 0
    written: int = 0  # end of the rows computed since the last (re)start, rejected drafts too
    blocks: list[int] = field(default_factory=list)
    slot: int = 0
    drafts: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)  # of these drafts
    older_rates: list[float] = field(default_factory=list)  # of the drafts before
    preemptions: int = 0
    overtakes: int = 0
    marked: bool = False  # a victim whose rows are in flight
    charged: bool = False  # its prompt was counted as service
    had_rows: bool = False
    flights: list["Piece"] = field(default_factory=list)
    copies_in_flight: int = 0  # into what it holds
    transfers: int = 0

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def output_len(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def priority(self) -> int:
        return self.options.priority

    @property
    def place(self) -> tuple[int, int]:
        return self.priority, self.order

    @property
    def share(self) -> tuple[int, int]:
        """Whose service it is: (class, user)."""
        return self.priority, self.options.user

    @property
    def in_flight(self) -> bool:
        return bool(self.flights) or self.copies_in_flight > 0

    @property
    def held_up(self) -> bool:
        """Whether a step or a transfer still needs what it holds."""
        return self.in_flight or self.transfers > 0

    def forget_drafts(self) -> None:
        self.drafts, self.rates, self.older_rates = [], [], []


@dataclass(eq=False)
class Piece:
    """Rows of one sequence in a plan."""

    sequence: ModelSequence
    tokens: list[int]  # known when the plan was made; drafts of a decode without source follow
    start: int
    rows: int
    decode: bool
    samples: bool
    output_len: int
    source: "Piece | None" = None  # its first row waits for the last token of this piece
    most_drafts: int = 0  # rows behind the first one that limits and its blocks allow
    allowed: int = 1  # most tokens that it may yield

    @property
    def end(self) -> int:
        return self.start + self.rows

    def row_tokens(self) -> list[int]:
        known = self.tokens[self.start : self.end]
        return known + [-1] * (self.rows - len(known))


@dataclass(eq=False)
class ForkCopy:
    """What a plan copies for one fork: (from, to) each."""

    child: ModelSequence
    blocks: list[tuple[int, int]]  # one, or none when the shared part ends with a block
    slots: tuple[int, int]


@dataclass(eq=False)
class ModelPlan:
    pieces: list[Piece]
    preempted: list[int]
    expired: list[int]
    copies: list[ForkCopy]
    costed: bool  # made with a step cost: drafts are distributed again when it is resolved

    @property
    def sampling(self) -> list[Piece]:
        return [piece for piece in self.pieces if piece.samples]


@dataclass(eq=False)
class Transfer:
    ticket: int
    sequence: ModelSequence
    expires: float
    incoming: bool


@dataclass
class Results:
    """What the device made of a plan, for its sampling pieces in order."""

    offers: list[list[int]]
    failed: list[bool]
    drafts: list[list[int]]  # ended by the first negative one
    confidences: list[list[float]]  # one a draft


class Pool:
    """Indices with reference counts and a first-in-first-out free list."""

    def __init__(self, size: int) -> None:
        self.free = list(range(1, size))
        self.refs: Counter[int] = Counter()

    def take(self) -> int:
        index = self.free.pop(0)
        self.refs[index] = 1
        return index

    def pin(self, indices: Iterable[int]) -> None:
        for index in indices:
            self.refs[index] += 1

    def drop(self, indices: Iterable[int]) -> None:
        for index in indices:
            self.refs[index] -= 1
            if self.refs[index] == 0:
                self.free.append(index)

    @property
    def used(self) -> int:
        return sum(count > 0 for count in self.refs.values())


def blocks_for(tokens: int, config: SchedulerConfig) -> int:
    return -(-tokens // config.block_size)


def length_limit(config: SchedulerConfig) -> int:
    """Most tokens of one sequence."""
    return min(config.max_model_len, (config.num_blocks - 1) * config.block_size)


def round_up(rows: int, align: int) -> int:
    return -(-rows // align) * align
