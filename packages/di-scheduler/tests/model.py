"""The scheduler's rules once more, in plain Python, for tests to run against the native one.

Written for clarity, not speed. Where the native code and this disagree, one of them is wrong; docs/interfaces.md says
which.
"""

from collections.abc import Sequence as Seq

from di_scheduler import (
    EngineKind,
    FinishReason,
    SchedulerConfig,
    SequenceLimits,
    SequenceOptions,
    SequenceState,
    StepKind,
)

from .model_commit import Outcome, commit
from .model_core import ModelCore
from .model_plan import PlanDraft, make_plan
from .model_rows import Bounds, certain_to_end, chunk_rows, is_decode
from .model_state import ForkCopy, ModelPlan, ModelSequence, Results, Transfer, blocks_for, length_limit

PLAIN = SequenceOptions()


class ModelScheduler:
    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.core = ModelCore(config)
        self.orders = 0
        self.tickets = 0

    @property
    def length_limit(self) -> int:
        return length_limit(self.config)

    # Life of a sequence.

    def _new(
        self,
        seq_id: int,
        prompt_len: int,
        tokens: Seq[int],
        limits: SequenceLimits,
        arrival: float,
        options: SequenceOptions,
    ) -> ModelSequence:
        sequence = ModelSequence(
            seq_id,
            self.orders,
            prompt_len,
            list(tokens),
            limits,
            options,
            arrival,
            added_at=self.core.counts.steps,
            ready=options.ready,
        )
        self.orders += 1
        self.core.live[seq_id] = sequence
        self.core.queue.enter(sequence)
        return sequence

    def add(
        self,
        seq_id: int,
        prompt: Seq[int],
        limits: SequenceLimits,
        arrival: float = 0.0,
        options: SequenceOptions = PLAIN,
    ) -> None:
        self.core.wait(self._new(seq_id, len(prompt), prompt, limits, arrival, options))

    def set_ready(self, seq_id: int) -> bool:
        sequence = self.core.live.get(seq_id)
        if sequence is None or sequence.ready:
            return False
        sequence.ready = True
        return True

    def finish(self, seq_id: int, reason: FinishReason) -> bool:
        sequence = self.core.live.get(seq_id)
        if sequence is None:
            return False
        self.core.end(sequence, reason)
        return True

    def fork(
        self,
        parent_id: int,
        seq_id: int,
        num_tokens: int,
        limits: SequenceLimits,
        arrival: float = 0.0,
        options: SequenceOptions = PLAIN,
    ) -> bool:
        core, parent = self.core, self.core.live[parent_id]
        computed = min(parent.computed, num_tokens - 1)
        shared = computed // self.config.block_size
        tail = computed % self.config.block_size > 0
        shares = (
            parent.state in (SequenceState.RUNNING, SequenceState.PROMPTED)
            and not parent.in_flight
            and options.ready
            and computed >= 1
            and parent.written - computed <= self.config.max_draft_tokens + 1
            and core.slots.used < self.config.max_num_seqs
            and len(core.blocks.free) >= tail
        )
        child = self._new(seq_id, num_tokens, parent.tokens[:num_tokens], limits, arrival, options)
        if not shares:
            core.wait(child)
            return False
        core.queue.charge_prompt(child)
        child.computed, child.written = computed, parent.written
        child.blocks, child.slot = parent.blocks[:shared], core.slots.take()
        core.blocks.pin(child.blocks)
        copy = ForkCopy(child, [], (parent.slot, child.slot))
        if tail:
            source, target = parent.blocks[shared], core.blocks.take()
            child.blocks.append(target)
            copy.blocks.append((source, target))
            core.blocks.pin([source])
        core.slots.pin([parent.slot])
        core.copies.append(copy)
        core.run(child)
        return True

    # Hand-over.

    def begin_transfer(self, seq_id: int, expires: float) -> int:
        sequence = self.core.live[seq_id]
        assert sequence.state is SequenceState.PROMPTED
        return self._transfer(sequence, expires, incoming=False)

    def _transfer(self, sequence: ModelSequence, expires: float, *, incoming: bool) -> int:
        self.tickets += 1
        sequence.transfers += 1
        self.core.transfers[self.tickets] = Transfer(self.tickets, sequence, expires, incoming)
        return self.tickets

    def import_sequence(
        self,
        seq_id: int,
        tokens: Seq[int],
        prompt_len: int,
        limits: SequenceLimits,
        expires: float,
        arrival: float = 0.0,
        options: SequenceOptions = PLAIN,
    ) -> int | None:
        core = self.core
        need = blocks_for(len(tokens) - 1, self.config)
        if core.slots.used >= self.config.max_num_seqs or need + len(core.running) > len(core.blocks.free):
            return None
        sequence = self._new(seq_id, prompt_len, tokens, limits, arrival, options)
        sequence.ready = True
        core.queue.charge_prompt(sequence)
        sequence.state, sequence.slot = SequenceState.RECEIVING, core.slots.take()
        sequence.blocks = [core.blocks.take() for _ in range(need)]
        return self._transfer(sequence, expires, incoming=True)

    def end_transfer(self, ticket: int, ok: bool) -> bool:
        return self.core.end_transfer(ticket, ok)

    # Steps.

    def plan(self, now: float = 0.0, kind: StepKind = StepKind.ANY) -> ModelPlan:
        return make_plan(self.core, now, kind)

    def commit(self, results: Results, now: float = 0.0) -> list[Outcome]:
        return commit(self.core, results, now)

    # Looking in.

    def in_state(self, state: SequenceState) -> list[ModelSequence]:
        found = [s for s in self.core.live.values() if s.state is state]
        return sorted(found, key=lambda s: s.place)

    def wants_prefill(self) -> bool:
        core = self.core
        if any(not is_decode(s) and not s.marked for s in core.running):
            return True
        candidate = core.queue.next(None)
        if candidate is None:
            return False
        rows = chunk_rows(candidate, 0, Bounds(self.config.max_num_batched_tokens), self.config)
        tokens = candidate.length + 1 if candidate.preemptions else rows
        return rows > 0 and PlanDraft(core).choose_victims(candidate, tokens) is not None

    def has_decodes(self) -> bool:
        return any(
            is_decode(s) and not s.marked and not certain_to_end(s, self.config) for s in self.core.running
        )

    def has_unfinished(self) -> bool:
        return bool(self.core.live or self.core.open_plans)

    @property
    def decode_only(self) -> bool:
        return self.config.kind is EngineKind.DECODE_ONLY
