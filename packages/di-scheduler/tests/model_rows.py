"""What one sequence could compute next: its kind, its chunk, its drafts. Nothing here changes anything."""

from dataclasses import dataclass

from di_scheduler import EngineKind, SchedulerConfig

from .model_drafts import DraftWish
from .model_state import ModelSequence, Piece, length_limit, round_up

UNLIMITED = 2**40


def open_piece(sequence: ModelSequence) -> Piece | None:
    """The piece of the open plan that the next one would follow."""
    return sequence.flights[-1] if sequence.flights else None


def waits_for(sequence: ModelSequence) -> Piece | None:
    """The piece in flight that yields its last token."""
    piece = open_piece(sequence)
    return piece if piece is not None and piece.samples else None


def next_start(sequence: ModelSequence) -> int:
    """First position of its next rows, with the least progress of the rows in flight."""
    piece = open_piece(sequence)
    if piece is None:
        return sequence.computed
    return sequence.length if piece.samples else piece.end


def is_decode(sequence: ModelSequence) -> bool:
    return waits_for(sequence) is not None or sequence.length - next_start(sequence) == 1


def most_new(sequence: ModelSequence) -> int:
    """Tokens that may come from the open plan."""
    source = waits_for(sequence)
    return source.allowed if source is not None else 0


def certain_to_end(sequence: ModelSequence, config: SchedulerConfig) -> bool:
    """Whether one token of the open plan is enough to take it out of the running ones."""
    if waits_for(sequence) is None:
        return False
    return (
        sequence.output_len + 1 >= sequence.limits.max_tokens
        or sequence.length + 1 >= length_limit(config)
        or config.kind is EngineKind.PREFILL_ONLY
    )


def most_drafts(sequence: ModelSequence, config: SchedulerConfig) -> int:
    left = sequence.limits.max_tokens - sequence.output_len - 1
    room = length_limit(config) - sequence.length
    if waits_for(sequence) is None:
        return max(0, min(len(sequence.drafts), left, room))
    return max(0, min(config.max_draft_tokens, left - 1, room - most_new(sequence)))


def wish(sequence: ModelSequence, config: SchedulerConfig) -> DraftWish:
    in_flight = waits_for(sequence) is not None
    total_rates = sequence.rates if in_flight else sequence.older_rates
    return DraftWish(most_drafts(sequence, config), total_rates, sequence.rates)


def decode_positions(sequence: ModelSequence, config: SchedulerConfig) -> int:
    """Positions that blocks must cover for its mandatory row, whatever the open plan yields."""
    return min(max(sequence.length + most_new(sequence), next_start(sequence) + 1), length_limit(config))


@dataclass
class Bounds:
    """What limits a chunk besides its sequence."""

    budget: int  # rows left
    room: int = UNLIMITED  # positions that blocks could cover
    context: int = UNLIMITED  # what its end position may be


def chunk_rows(sequence: ModelSequence, start: int, bounds: Bounds, config: SchedulerConfig) -> int:
    """Rows of the next chunk of a prefill; 0: none now."""
    missing, align = sequence.length - start, config.chunk_align
    largest = min(config.max_chunk_tokens or UNLIMITED, bounds.room - start)
    rows = min(missing, largest, bounds.budget)
    if rows <= 0:
        return 0
    if rows < missing:
        rows -= rows % align
    elif round_up(rows, align) > bounds.budget:
        rows = bounds.budget - bounds.budget % align
    for checkpoint in sequence.options.checkpoints:
        if start < checkpoint < start + rows:
            rows = checkpoint - start
            break
    for first, tokens in sequence.options.images:
        if first < start + rows < first + tokens:
            rows = max(first - start, 0)
            behind = first + tokens - start
            if rows == 0 and behind <= largest and round_up(behind, align) <= bounds.budget:
                rows = behind
    return rows if start + rows <= bounds.context else 0


def mandatory_chunk(sequence: ModelSequence, start: int, config: SchedulerConfig) -> int:
    """How much of a chunk must find blocks: a whole image and an aligned piece."""
    least = min(config.chunk_align, sequence.length - start)
    for first, tokens in sequence.options.images:
        if first <= start < first + tokens:
            least = max(least, first + tokens - start)
    return least
