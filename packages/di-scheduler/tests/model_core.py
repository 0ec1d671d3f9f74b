"""Pools, queues and the one path on which a sequence of the model ends or loses its cache."""

from dataclasses import dataclass, field

from di_scheduler import EngineKind, FinishReason, SchedulerConfig, SequenceState

from .model_drafts import Cost
from .model_queue import WaitingQueue
from .model_state import ForkCopy, ModelPlan, ModelSequence, Pool, Transfer


@dataclass
class Counts:
    """Counters with the names of `SchedulerStats`."""

    preemptions: int = 0
    preemptions_in_flight: int = 0
    aborts: int = 0
    expirations: int = 0
    steps: int = 0
    chunks: int = 0
    mixed_steps: int = 0
    drafts_planned: int = 0
    drafts_accepted: int = 0
    tokens_committed: int = 0
    num_first_scheduled: int = 0
    steps_waited_sum: int = 0
    steps_waited_max: int = 0
    wait_sum: float = 0.0
    wait_max: float = 0.0
    num_first_tokens: int = 0
    first_token_wait_sum: float = 0.0
    first_token_wait_max: float = 0.0


@dataclass
class News:
    """What the next plan reports."""

    preempted: list[int] = field(default_factory=list)
    expired: list[int] = field(default_factory=list)


class ModelCore:
    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.blocks = Pool(config.num_blocks)
        self.slots = Pool(config.num_slots)
        self.queue = WaitingQueue(config.max_overtakes)
        self.running: list[ModelSequence] = []
        self.live: dict[int, ModelSequence] = {}
        self.ended_in_flight: list[ModelSequence] = []
        self.open_plans: list[ModelPlan] = []
        self.copies: list[ForkCopy] = []  # for the next plan with rows
        self.transfers: dict[int, Transfer] = {}
        self.counts = Counts()
        self.news = News()
        self.cost: Cost | None = None
        self.prefill_had_last_turn = False

    def run(self, sequence: ModelSequence) -> None:
        sequence.state = SequenceState.RUNNING
        self.running.append(sequence)
        self.running.sort(key=lambda s: s.place)

    def wait(self, sequence: ModelSequence) -> None:
        sequence.state = SequenceState.WAITING
        self.queue.put(sequence)

    def end(self, sequence: ModelSequence, reason: FinishReason) -> None:
        for queue in (self.queue.sequences, self.running):
            if sequence in queue:
                queue.remove(sequence)
        self.queue.leave(sequence)
        del self.live[sequence.seq_id]
        self.news.preempted = [seq_id for seq_id in self.news.preempted if seq_id != sequence.seq_id]
        sequence.state, sequence.finish, sequence.marked = SequenceState.FINISHED, reason, False
        self.counts.aborts += reason is FinishReason.ABORT
        if sequence.held_up:
            self.ended_in_flight.append(sequence)
        else:
            self.release(sequence)

    def release_if_due(self, sequence: ModelSequence) -> None:
        """Of a sequence that has ended, once nothing needs what it holds."""
        if sequence in self.ended_in_flight and not sequence.held_up:
            self.ended_in_flight.remove(sequence)
            self.release(sequence)

    def release(self, sequence: ModelSequence) -> None:
        self.blocks.drop(reversed(sequence.blocks))
        if sequence.slot:
            self.slots.drop([sequence.slot])
        sequence.blocks, sequence.slot = [], 0
        for copy in [c for c in self.copies if c.child is sequence]:
            self.copies.remove(copy)
            self.unpin(copy)

    def unpin(self, copy: ForkCopy) -> None:
        self.blocks.drop(source for source, _ in copy.blocks)
        self.slots.drop([copy.slots[0]])

    def preempt(self, victim: ModelSequence) -> None:
        """Take the cache of a running sequence that is not in flight."""
        victim.marked = False
        if self.config.kind is EngineKind.DECODE_ONLY:
            self.end(victim, FinishReason.PREEMPTED)
            self.note_preempted(victim)
            return
        self.running.remove(victim)
        self.restart(victim)

    def note_preempted(self, sequence: ModelSequence) -> None:
        self.counts.preemptions += 1
        self.news.preempted.append(sequence.seq_id)

    def restart(self, sequence: ModelSequence) -> None:
        self.note_preempted(sequence)
        self.release(sequence)
        sequence.computed = sequence.written = 0
        sequence.preemptions += 1
        sequence.forget_drafts()
        self.wait(sequence)

    def end_transfer(self, ticket: int, ok: bool) -> bool:
        transfer = self.transfers.pop(ticket, None)
        if transfer is None:
            return False
        sequence = transfer.sequence
        sequence.transfers -= 1
        if sequence.finish:
            self.release_if_due(sequence)
        elif not transfer.incoming:
            self.end(sequence, FinishReason.HANDED_OVER if ok else FinishReason.ERROR)
        elif ok:
            sequence.computed = sequence.written = sequence.length - 1
            self.run(sequence)
        elif self.config.kind is EngineKind.DECODE_ONLY:
            self.end(sequence, FinishReason.ERROR)
        else:
            self.restart(sequence)
        return True

    @property
    def blocks_are_coming(self) -> bool:
        """Whether a commit of what is in flight will give blocks back."""
        return any(s.marked for s in self.running) or any(s.in_flight for s in self.ended_in_flight)

    def expire(self, now: float) -> None:
        """Deadlines first, then leases, each in order of time."""
        late = [s for s in self.live.values() if s.options.deadline is not None and s.options.deadline <= now]
        for sequence in sorted(late, key=lambda s: (s.options.deadline, s.order)):
            self.counts.expirations += 1
            self.news.expired.append(sequence.seq_id)
            self.end(sequence, FinishReason.DEADLINE)
        over = [t for t in self.transfers.values() if t.expires <= now]
        for transfer in sorted(over, key=lambda t: (t.expires, t.ticket)):
            lived = transfer.sequence.finish is FinishReason.NONE
            self.end_transfer(transfer.ticket, ok=False)
            if lived and transfer.sequence.finish:
                self.counts.expirations += 1
                self.news.expired.append(transfer.sequence.seq_id)
