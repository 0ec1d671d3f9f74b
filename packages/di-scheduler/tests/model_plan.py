"""How the model makes a plan: who gets rows, who is admitted, who gives up its cache."""

from dataclasses import dataclass, field

from di_scheduler import SchedulerConfig, StepKind, StepPolicy

from .model_core import ModelCore
from .model_drafts import share_drafts
from .model_rows import (
    UNLIMITED,
    Bounds,
    certain_to_end,
    chunk_rows,
    decode_positions,
    is_decode,
    mandatory_chunk,
    next_start,
    waits_for,
    wish,
)
from .model_state import ModelPlan, ModelSequence, Piece, blocks_for, round_up

Kinds = tuple[str, ...]


def make_plan(core: ModelCore, now: float, kind: StepKind) -> ModelPlan:
    core.expire(now)
    draft = PlanDraft(core)
    for kinds in turns(core, kind):
        draft.fill(kinds, mixed=len(kinds) == 2)
        if draft.pieces:
            core.prefill_had_last_turn = kinds == ("prefill",)
            break
    pieces = sorted(draft.pieces, key=lambda p: (not p.decode, p.sequence.place))
    news, core.news = core.news, type(core.news)()
    plan = ModelPlan(pieces, news.preempted, news.expired, [], core.cost is not None)
    if pieces:
        open_plan(core, plan, now)
    return plan


def turns(core: ModelCore, kind: StepKind) -> list[Kinds]:
    if kind is StepKind.DECODE:
        return [("decode",)]
    if kind is StepKind.PREFILL:
        return [("prefill",)]
    if core.config.policy is StepPolicy.MIXED:
        return [("decode", "prefill")]
    return [("decode",), ("prefill",)] if core.prefill_had_last_turn else [("prefill",), ("decode",)]


def open_plan(core: ModelCore, plan: ModelPlan, now: float) -> None:
    counts = core.counts
    for piece in plan.pieces:
        sequence = piece.sequence
        sequence.flights.append(piece)
        counts.chunks += not piece.samples
        counts.drafts_planned += piece.rows - 1 if piece.decode else 0
        if not sequence.had_rows:
            sequence.had_rows = True
            waited, wait = counts.steps - sequence.added_at, now - sequence.arrival
            counts.num_first_scheduled += 1
            counts.steps_waited_sum += waited
            counts.steps_waited_max = max(counts.steps_waited_max, waited)
            counts.wait_sum += wait
            counts.wait_max = max(counts.wait_max, wait)
    counts.steps += 1
    counts.mixed_steps += len({piece.decode for piece in plan.pieces}) == 2
    plan.copies, core.copies = core.copies, []
    for copy in plan.copies:
        copy.child.copies_in_flight += 1
    core.open_plans.append(plan)


@dataclass
class PlanDraft:
    """A plan that is being made."""

    core: ModelCore
    pieces: list[Piece] = field(default_factory=list)
    used: int = 0  # rows of the budget, aligned
    context: int = 0  # sum of the end positions of prefill pieces
    lacked: bool = False  # a running sequence found no block
    drafts: dict[ModelSequence, int] = field(default_factory=dict)
    most: dict[ModelSequence, int] = field(default_factory=dict)

    @property
    def config(self) -> SchedulerConfig:
        return self.core.config

    def fill(self, kinds: Kinds, *, mixed: bool) -> None:
        self.count_drafts(mixed)
        tried: set[int] = set()
        cursor: tuple[float, float] = (float("-inf"), 0)
        while rest := [s for s in self.core.running if s.place > cursor]:
            sequence = rest[0]
            if "prefill" in kinds and sequence.priority not in tried:
                tried.add(sequence.priority)
                self.admit(mixed, before_class=sequence.priority)
                continue  # it may be running no more
            cursor = sequence.place
            if not self.has_rows(sequence) and not sequence.marked:
                self.go_on(sequence, kinds, mixed)
        if "prefill" in kinds:
            self.admit(mixed, before_class=None)

    def count_drafts(self, mixed: bool) -> None:
        config, running = self.config, self.core.running
        decodes = [s for s in running if is_decode(s) and not s.marked and not certain_to_end(s, config)]
        prefill = any(not is_decode(s) and not s.marked for s in running)
        reserved = mixed and (prefill or self.core.queue.next(None) is not None)
        budget = config.max_num_batched_tokens - (config.chunk_align if reserved else 0)
        wishes = [wish(s, config) for s in decodes]
        self.drafts = dict(zip(decodes, share_drafts(wishes, budget, self.core.cost), strict=True))
        self.most = {s: w.most for s, w in zip(decodes, wishes, strict=True)}

    def has_rows(self, sequence: ModelSequence) -> bool:
        return any(piece.sequence is sequence for piece in self.pieces)

    # Running sequences.

    def go_on(self, sequence: ModelSequence, kinds: Kinds, mixed: bool) -> None:
        if not is_decode(sequence):
            if "prefill" in kinds:
                self.next_chunk(sequence, mixed)
        elif "decode" in kinds and sequence in self.drafts:
            self.next_decode(sequence)

    def next_decode(self, sequence: ModelSequence) -> None:
        if self.used >= self.config.max_num_batched_tokens:
            return
        base = decode_positions(sequence, self.config)
        if not self.reserve(sequence, base):
            return
        in_flight = waits_for(sequence) is not None
        wished = (self.most if in_flight and self.core.cost is not None else self.drafts)[sequence]
        self.grow(sequence, base)
        behind = sum(s.place > sequence.place for s in self.core.running)
        spare = max(0, len(self.core.blocks.free) - behind)
        capacity = (len(sequence.blocks) + spare) * self.config.block_size
        granted = min(wished, capacity - base)
        self.grow(sequence, base + granted)
        drafts = min(self.drafts[sequence], granted)
        self.add(sequence, next_start(sequence), 1 + drafts, decode=True)
        self.pieces[-1].most_drafts = granted

    def next_chunk(self, sequence: ModelSequence, mixed: bool) -> None:
        start = next_start(sequence)
        bounds = self.bounds(sequence, mixed)
        rows = chunk_rows(sequence, start, bounds, self.config)
        if rows == 0:
            return
        least = min(mandatory_chunk(sequence, start, self.config), rows)
        if not self.reserve(sequence, start + least):
            return
        free = len(sequence.blocks) + len(self.core.blocks.free)
        bounds.room = free * self.config.block_size
        if start + rows > bounds.room:
            rows = chunk_rows(sequence, start, bounds, self.config)
        self.grow(sequence, start + rows)
        self.add(sequence, start, rows, decode=False)

    def bounds(self, sequence: ModelSequence, mixed: bool) -> Bounds:
        left = self.config.max_num_batched_tokens - self.used
        if mixed:
            left -= sum(
                1 + drafts
                for s, drafts in self.drafts.items()
                if s in self.core.running
                and s.place > sequence.place
                and not s.marked
                and not self.has_rows(s)
            )
        first = all(piece.decode for piece in self.pieces)
        limit = self.config.max_step_context
        context = UNLIMITED if limit is None or first else limit - self.context
        return Bounds(budget=left, context=context)

    def grow(self, sequence: ModelSequence, positions: int) -> None:
        while len(sequence.blocks) < blocks_for(positions, self.config):
            sequence.blocks.append(self.core.blocks.take())

    def add(self, sequence: ModelSequence, start: int, rows: int, *, decode: bool) -> None:
        source = waits_for(sequence)
        known = list(sequence.tokens)
        if decode and source is None:
            known += sequence.drafts[: rows - 1]
        self.pieces.append(
            Piece(
                sequence,
                known,
                start,
                rows,
                decode,
                samples=decode or start + rows == sequence.length,
                output_len=sequence.output_len + (source is not None),
                source=source,
                allowed=rows if decode else 1,
            )
        )
        self.used += rows if decode else round_up(rows, self.config.chunk_align)
        self.context += 0 if decode else start + rows

    # Blocks.

    def reserve(self, sequence: ModelSequence, positions: int) -> bool:
        """Free blocks for the mandatory rows of a running sequence, at the cost of others; False: left out."""
        core = self.core
        while blocks_for(positions, self.config) > len(sequence.blocks) + len(core.blocks.free):
            self.lacked = True
            if core.blocks_are_coming:
                return False
            candidates = [s for s in core.running[1:] if s.place >= sequence.place and not self.has_rows(s)]
            if not candidates:
                return False
            victim = max(candidates, key=victim_rank)
            if victim.in_flight:
                victim.marked = True
                return False
            core.preempt(victim)
            if victim is sequence:
                return False
        return True

    # Admission.

    def admit(self, mixed: bool, before_class: int | None) -> None:
        while not self.lacked:
            candidate = self.core.queue.next(before_class)
            if candidate is None or not self.try_admit(candidate, mixed):
                return

    def try_admit(self, candidate: ModelSequence, mixed: bool) -> bool:
        rows = chunk_rows(candidate, 0, self.bounds(candidate, mixed), self.config)
        if rows == 0:
            return False
        tokens = candidate.length + 1 if candidate.preemptions else rows
        if not self.make_room(candidate, tokens):
            return False
        self.core.queue.admit(candidate)
        candidate.slot = self.core.slots.take()
        self.core.run(candidate)
        self.grow(candidate, rows)
        self.add(candidate, 0, rows, decode=False)
        return True

    def fits(self, tokens: int, victims: list[ModelSequence]) -> bool:
        """Whether a slot and the blocks would be free without these."""
        core, config = self.core, self.config
        slots = core.slots.used - sum(core.slots.refs[victim.slot] == 1 for victim in victims)
        given = sum(core.blocks.refs[block] == 1 for victim in victims for block in victim.blocks)
        watermark = int(config.watermark * (config.num_blocks - 1)) if slots else 0
        need = blocks_for(tokens, config) + len(core.running) - len(victims) + watermark
        return slots < config.max_num_seqs and need <= len(core.blocks.free) + given

    def choose_victims(self, candidate: ModelSequence, tokens: int) -> list[ModelSequence] | None:
        """The fewest that make room, perhaps none; None when no number would do or blocks are coming."""
        if self.fits(tokens, []):
            return []
        if self.core.blocks_are_coming:
            return None
        lesser = [s for s in self.core.running if s.priority > candidate.priority and not self.has_rows(s)]
        ranked = sorted(lesser, key=victim_rank, reverse=True)
        choices = (ranked[:n] for n in range(1, len(ranked) + 1))
        return next((victims for victims in choices if self.fits(tokens, victims)), None)

    def make_room(self, candidate: ModelSequence, tokens: int) -> bool:
        victims = self.choose_victims(candidate, tokens)
        for victim in victims or []:
            if victim.in_flight:
                victim.marked = True
            else:
                self.core.preempt(victim)
        return victims is not None and not any(victim.marked for victim in victims)


def victim_rank(sequence: ModelSequence) -> tuple[int, int, int]:
    """Who gives up its cache: the greatest of the least urgent, least computed, latest."""
    return sequence.priority, -sequence.computed, sequence.order
