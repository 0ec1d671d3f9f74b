"""What the outside world knows of a native scheduler: what it was told, and snapshots by public methods."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from di_scheduler import (
    FinishReason,
    Scheduler,
    SchedulerConfig,
    SchedulerStats,
    SequenceInfo,
    SequenceLimits,
    SequenceOptions,
    SequenceState,
    StepKind,
    StepPlan,
)


@dataclass(eq=False)
class Request:
    """One request, as its owner sees it."""

    seq_id: int
    prompt: list[int]
    limits: SequenceLimits
    options: SequenceOptions
    order: int
    family: int  # of forks: the order of the first of them
    ready: bool = True
    delivered: list[int] = field(default_factory=list)
    finishes: list[FinishReason] = field(default_factory=list)
    computed: int = 0  # positions in the cache since the last (re)start, by what was committed
    reach: int = 0  # positions that plans since then may have written
    rows_in_flight: list["Rows"] = field(default_factory=list)
    preemptions: int = 0
    overtaken: int = 0
    copies: int = 0  # into its blocks or slot, planned or in flight
    tickets: set[int] = field(default_factory=set)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.delivered

    @property
    def place(self) -> tuple[int, int]:
        return self.options.priority, self.order

    @property
    def held_up(self) -> bool:
        return bool(self.rows_in_flight or self.tickets or self.copies)


@dataclass(eq=False)
class Rows:
    """One sequence in a plan, as plain values."""

    request: Request
    start: int
    rows: int
    decode: bool
    samples: bool
    source: int
    table: list[int]
    slot: int
    tokens: list[int]
    positions: list[int]
    context: list[int]
    prompt_len: int
    output_len: int
    params: tuple[float, ...]

    @property
    def end(self) -> int:
        return self.start + self.rows

    @property
    def most_tokens(self) -> int:
        return self.rows if self.decode else 1


def rows_of(plan: StepPlan, requests: Mapping[int, Request]) -> list[Rows]:
    """A plan by sequence; whose it is, by id."""
    ends, table = plan.row_start.tolist(), plan.block_table.tolist()
    tokens, positions = plan.token_ids.tolist(), plan.positions.tolist()
    columns = zip(
        plan.seq_ids.tolist(),
        plan.q_start.tolist(),
        plan.q_len.tolist(),
        plan.decodes.tolist(),
        plan.samples.tolist(),
        plan.source.tolist(),
        ([block for block in row if block] for row in table),
        plan.slots.tolist(),
        (tokens[first:end] for first, end in pairwise(ends)),
        (positions[first:end] for first, end in pairwise(ends)),
        plan.context.tolist(),
        plan.prompt_len.tolist(),
        plan.output_len.tolist(),
        (tuple(values) for values in plan.params.tolist()),
        strict=True,
    )
    return [Rows(requests[seq_id], *values) for seq_id, *values in columns]


@dataclass(eq=False)
class Step:
    """A plan with what was asked for; `groups` become those of the resolved plan."""

    plan: StepPlan
    kind: StepKind
    groups: list[Rows]
    bytes_at_birth: dict[str, bytes] = field(default_factory=dict)

    def remember(self) -> None:
        names = ("token_ids", "block_table", "seq_ids")
        self.bytes_at_birth = {name: getattr(self.plan, name).tobytes() for name in names}

    @property
    def sampling(self) -> list[Rows]:
        return [rows for rows in self.groups if rows.samples]


@dataclass(eq=False)
class Pinned:
    """Sources that a fork's copies still need, and where they go."""

    child: Request
    blocks: list[tuple[int, int]]
    slots: tuple[int, int]


@dataclass(eq=False)
class Ghost:
    """What a sequence that has ended still holds, because a step or a transfer needs it."""

    request: Request
    table: list[int]
    slot: int


@dataclass
class Observation:
    """The native scheduler at one moment, with all that was told to the outside so far."""

    config: SchedulerConfig
    scheduler: Scheduler
    stats: SchedulerStats
    live: dict[int, Request] = field(default_factory=dict)  # by id
    ended: list[Request] = field(default_factory=list)
    ghosts: list[Ghost] = field(default_factory=list)
    pinned: list[Pinned] = field(default_factory=list)  # for the next plan with rows
    copying: list[list[Pinned]] = field(default_factory=list)  # by open plan
    steps: list[Step] = field(default_factory=list)  # open plans, oldest first
    infos: dict[int, SequenceInfo] = field(default_factory=dict)  # of `live`
    waiting: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    before: "Snapshot | None" = None  # when the last plan was asked for
    preempted: int = 0  # sequences that lost their cache
    untold: list[int] = field(default_factory=list)  # of these, those that the next plan tells
    refusals: int = 0
    aborted: int = 0
    kept: int = 0  # tokens

    def look(self) -> None:
        scheduler = self.scheduler
        self.stats = scheduler.stats()
        self.infos = {seq_id: scheduler.describe(seq_id) for seq_id in self.live}
        self.waiting = scheduler.waiting_ids().tolist()
        self.running = scheduler.running_ids().tolist()

    def snapshot(self) -> "Snapshot":
        return Snapshot(self.stats, dict(self.infos), list(self.waiting), list(self.running))

    def tables(self) -> list[tuple[Request, list[int], int]]:
        """(request, blocks, slot) of everyone who holds something."""
        held = [(self.live[i], info.block_table.tolist(), info.slot) for i, info in self.infos.items()]
        held += [(ghost.request, ghost.table, ghost.slot) for ghost in self.ghosts]
        return [(request, table, slot) for request, table, slot in held if table or slot]

    def pins(self) -> list[Pinned]:
        return self.pinned + [pin for step in self.copying for pin in step]

    def in_state(self, state: SequenceState) -> list[int]:
        return [seq_id for seq_id, info in self.infos.items() if info.state == state]


@dataclass
class Snapshot:
    stats: SchedulerStats
    infos: dict[int, SequenceInfo]
    waiting: list[int]
    running: list[int]


def queue_before(o: Observation, request: Request) -> list[Request]:
    """The waiting requests of its class and user that came earlier."""
    return [
        other
        for other in (o.live[seq_id] for seq_id in o.waiting)
        if other.options.priority == request.options.priority
        and other.options.user == request.options.user
        and other.order < request.order
    ]
