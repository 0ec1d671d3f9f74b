"""The scheduler's rules once more, in plain Python, for tests to run against the native one.

Written for clarity, not speed: lists that are searched from the start, nothing cached. Where the native code and
this file disagree, one of them is wrong.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from di_scheduler import FinishReason, SchedulerConfig, SequenceLimits, StepPolicy


@dataclass(eq=False)  # compared by identity
class ModelSequence:
    seq_id: int
    order: int
    prompt_len: int
    tokens: list[int]
    limits: SequenceLimits
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    slot: int = 0
    preemptions: int = 0
    finish: FinishReason = FinishReason.NONE

    @property
    def missing(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_len :]


@dataclass
class Piece:
    """Rows of one sequence in a step."""

    sequence: ModelSequence
    start: int
    rows: int
    decode: bool
    samples: bool


class ModelScheduler:
    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.free_blocks = list(range(1, config.num_blocks))
        self.free_slots = list(range(1, config.num_slots))
        self.waiting: list[ModelSequence] = []
        self.running: list[ModelSequence] = []
        self.step: list[Piece] = []
        self.prefill_had_last_turn = False
        self.orders = 0
        self.preemptions = self.aborts = self.steps = self.chunks = self.mixed_steps = 0

    # Life of a sequence.

    def accepts(self, prompt_len: int) -> bool:
        return 1 <= prompt_len < self.length_limit

    @property
    def length_limit(self) -> int:
        config = self.config
        return min(config.max_model_len, (config.num_blocks - 1) * config.block_size)

    def add(self, seq_id: int, prompt: Seq[int], limits: SequenceLimits) -> None:
        self.waiting.append(ModelSequence(seq_id, self.orders, len(prompt), list(prompt), limits))
        self.orders += 1

    def finish(self, seq_id: int, reason: FinishReason) -> bool:
        for sequence in self.waiting + self.running:
            if sequence.seq_id == seq_id:
                self.aborts += reason == FinishReason.ABORT
                self._end(sequence, reason)
                return True
        return False

    def _end(self, sequence: ModelSequence, reason: FinishReason) -> None:
        for queue in (self.waiting, self.running):
            if sequence in queue:
                queue.remove(sequence)
        sequence.finish = reason
        if not any(piece.sequence is sequence for piece in self.step):
            self._release(sequence)

    def _release(self, sequence: ModelSequence) -> None:
        self.free_blocks += reversed(sequence.blocks)
        sequence.blocks = []
        if sequence.slot:
            self.free_slots.append(sequence.slot)
        sequence.slot = 0

    # Planning.

    def plan(self) -> tuple[list[Piece], list[int]]:
        """The pieces of the next step in order, and the ids preempted."""
        if self.config.policy is StepPolicy.MIXED:
            turns: list[tuple[str, ...]] = [("decode", "prefill")]
        elif self.prefill_had_last_turn:
            turns = [("decode",), ("prefill",)]
        else:
            turns = [("prefill",), ("decode",)]
        pieces: list[Piece] = []
        preempted: list[ModelSequence] = []
        for kinds in turns:
            self._continue(kinds, pieces, preempted)
            if "prefill" in kinds and not preempted:
                self._admit(pieces)
            if pieces:
                self.prefill_had_last_turn = kinds == ("prefill",)
                break
        pieces = [p for p in pieces if p.decode] + [p for p in pieces if not p.decode]
        self.step = pieces
        self._count(pieces, preempted)
        return pieces, [s.seq_id for s in preempted]

    def _count(self, pieces: list[Piece], preempted: list[ModelSequence]) -> None:
        self.preemptions += len(preempted)
        self.steps += bool(pieces)
        self.chunks += sum(not p.samples for p in pieces)
        self.mixed_steps += len({p.decode for p in pieces}) == 2

    def _continue(self, kinds: tuple[str, ...], pieces: list[Piece], preempted: list[ModelSequence]) -> None:
        for sequence in list(self.running):
            if sequence not in self.running:  # a victim of one before it
                continue
            decode = sequence.missing == 1
            if ("decode" if decode else "prefill") not in kinds:
                continue
            later_decodes = sum(s.missing == 1 and s.order > sequence.order for s in self.running)
            promised = later_decodes if "decode" in kinds else 0
            rows = min(sequence.missing, self._chunk_limit(pieces) - (0 if decode else promised))
            if not decode:
                rows = min(rows, self.config.max_chunk_tokens or rows)
            if rows <= 0:
                continue
            while self._room(sequence) == 0:
                victim = max(self.running, key=lambda s: s.order)
                self._preempt(victim)
                preempted.append(victim)
                if victim is sequence:
                    break
            if sequence in self.running:
                self._schedule(sequence, min(rows, self._room(sequence)), decode, pieces)

    def _admit(self, pieces: list[Piece]) -> None:
        while self.waiting and len(self.running) < self.config.max_num_seqs:
            sequence = self.waiting[0]
            rows = min(sequence.missing, self._chunk_limit(pieces))
            rows = min(rows, self.config.max_chunk_tokens or rows)
            tokens = len(sequence.tokens) + 1 if sequence.preemptions else rows
            if rows <= 0 or self._blocks(tokens) + len(self.running) > len(self.free_blocks):
                return
            self.waiting.remove(sequence)
            sequence.slot = self.free_slots.pop(0)
            self._schedule(sequence, rows, False, pieces)
            self.running.append(sequence)
            self.running.sort(key=lambda s: s.order)

    def _schedule(self, sequence: ModelSequence, rows: int, decode: bool, pieces: list[Piece]) -> None:
        while len(sequence.blocks) < self._blocks(sequence.computed + rows):
            sequence.blocks.append(self.free_blocks.pop(0))
        pieces.append(Piece(sequence, sequence.computed, rows, decode, rows == sequence.missing))

    def _preempt(self, victim: ModelSequence) -> None:
        self.running.remove(victim)
        self._release(victim)
        victim.computed = 0
        victim.preemptions += 1
        self.waiting.append(victim)
        self.waiting.sort(key=lambda s: s.order)

    def _chunk_limit(self, pieces: list[Piece]) -> int:
        return self.config.max_num_batched_tokens - sum(p.rows for p in pieces)

    def _room(self, sequence: ModelSequence) -> int:
        blocks = len(sequence.blocks) + len(self.free_blocks)
        return blocks * self.config.block_size - sequence.computed

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.config.block_size)

    # Committing.

    def commit(
        self, offers: Seq[Seq[int]], failed: Seq[bool]
    ) -> tuple[list[int], list[int], list[FinishReason]]:
        """Ids, tokens kept and finish reasons of the sampling pieces."""
        pieces, self.step = self.step, []
        outcomes = []
        pending = list(zip(offers, failed, strict=True))
        for piece in pieces:
            sequence = piece.sequence
            before = len(sequence.tokens)
            if sequence.finish:
                self._release(sequence)
            else:
                sequence.computed = piece.start + piece.rows
            if not piece.samples:
                continue
            offer, fails = pending.pop(0)
            if not sequence.finish:
                self._keep(sequence, offer, fails)
            outcomes.append((sequence.seq_id, len(sequence.tokens) - before, sequence.finish))
        ids, kept, finish = zip(*outcomes, strict=True) if outcomes else ((), (), ())
        return list(ids), list(kept), list(finish)

    def _keep(self, sequence: ModelSequence, offer: Seq[int], fails: bool) -> None:
        if fails or not offer or min(offer) < 0:
            self._end(sequence, FinishReason.ERROR)
            return
        for token in offer:
            sequence.tokens.append(token)
            reason = self._stop(sequence, token)
            if reason:
                self._end(sequence, reason)
                return

    def _stop(self, sequence: ModelSequence, token: int) -> FinishReason:
        limits = sequence.limits
        may_stop = len(sequence.output) - 1 >= limits.min_tokens
        if may_stop and token in limits.eos_token_ids and not limits.ignore_eos:
            return FinishReason.STOP
        if may_stop and token in limits.stop_token_ids:
            return FinishReason.STOP_TOKEN
        if len(sequence.output) == limits.max_tokens or len(sequence.tokens) == self.length_limit:
            return FinishReason.LENGTH
        return FinishReason.NONE
