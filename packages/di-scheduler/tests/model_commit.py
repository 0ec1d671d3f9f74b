"""What the results of a step change in the model, and what they make of the plan after it."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from di_scheduler import EngineKind, FinishReason, SchedulerConfig, SequenceState

from .model_core import ModelCore
from .model_drafts import distribute, extended
from .model_state import ModelPlan, ModelSequence, Piece, Results, length_limit


@dataclass(frozen=True)
class Outcome:
    seq_id: int
    kept: int
    finish: FinishReason
    first_token_wait: float | None


def commit(core: ModelCore, results: Results, now: float) -> list[Outcome]:
    """Take in the results of the oldest open plan."""
    plan = core.open_plans.pop(0)
    rows = iter(zip(results.offers, results.failed, results.drafts, results.confidences, strict=True))
    outcomes = []
    for piece in plan.pieces:
        sequence = piece.sequence
        sequence.flights.remove(piece)
        sequence.written = max(sequence.written, piece.end)
        if not piece.samples:
            if not sequence.finish:
                sequence.computed = piece.end
        else:
            offer, failed, drafts, confidences = next(rows)
            outcomes.append(take(core, piece, offer, failed, now))
            if not sequence.finish:
                take_drafts(sequence, drafts, confidences)
        leave_flight(core, sequence)
        if piece.samples and sequence.finish is FinishReason.PREEMPTED:
            last = outcomes[-1]
            outcomes[-1] = Outcome(last.seq_id, last.kept, sequence.finish, last.first_token_wait)
    land_copies(core, plan)
    if core.open_plans:
        dropped = resolve(core.open_plans[0], plan, results, core)
        for piece in dropped:
            piece.sequence.flights.remove(piece)
            leave_flight(core, piece.sequence)
    return outcomes


def leave_flight(core: ModelCore, sequence: ModelSequence) -> None:
    core.release_if_due(sequence)
    if sequence.marked and not sequence.in_flight:
        core.counts.preemptions_in_flight += 1
        core.preempt(sequence)


def land_copies(core: ModelCore, plan: ModelPlan) -> None:
    for copy in plan.copies:
        copy.child.copies_in_flight -= 1
        leave_flight(core, copy.child)
        core.unpin(copy)


def take(core: ModelCore, piece: Piece, offer: Seq[int], failed: bool, now: float) -> Outcome:
    sequence, counts = piece.sequence, core.counts
    if sequence.finish:
        return Outcome(sequence.seq_id, 0, sequence.finish, None)
    if failed or is_impossible(piece, offer):
        core.end(sequence, FinishReason.ERROR)
        return Outcome(sequence.seq_id, 0, FinishReason.ERROR, None)
    before, reason = sequence.output_len, FinishReason.NONE
    for token in offer:
        sequence.tokens.append(token)
        reason = stop_reason(sequence, token, core.config)
        if reason:
            break
    kept = sequence.output_len - before
    sequence.computed = sequence.length - 1
    counts.tokens_committed += kept
    counts.drafts_accepted += kept - 1 if piece.decode else 0
    core.queue.charge(sequence, kept)
    wait = None
    if before == 0:
        wait = now - sequence.arrival
        counts.num_first_tokens += 1
        counts.first_token_wait_sum += wait
        counts.first_token_wait_max = max(counts.first_token_wait_max, wait)
    if reason:
        core.end(sequence, reason)
    elif core.config.kind is EngineKind.PREFILL_ONLY:
        core.running.remove(sequence)
        sequence.state, sequence.marked = SequenceState.PROMPTED, False
    return Outcome(sequence.seq_id, kept, reason, wait)


def is_impossible(piece: Piece, offer: Seq[int]) -> bool:
    return not 1 <= len(offer) <= piece.allowed or min(offer) < 0


def take_drafts(sequence: ModelSequence, drafts: Seq[int], confidences: Seq[float]) -> None:
    sequence.drafts, sequence.older_rates = list(drafts), sequence.rates
    sequence.rates = products(confidences)


def products(confidences: Seq[float]) -> list[float]:
    """Cumulative. The tests use confidences whose products are exact in float32."""
    rates, rate = [], 1.0
    for confidence in confidences:
        rate *= confidence
        rates.append(rate)
    return rates


def stop_reason(sequence: ModelSequence, token: int, config: SchedulerConfig) -> FinishReason:
    limits = sequence.limits
    may_stop = sequence.output_len - 1 >= limits.min_tokens
    if may_stop and token in limits.eos_token_ids and not limits.ignore_eos:
        return FinishReason.STOP
    if may_stop and token in limits.stop_token_ids:
        return FinishReason.STOP_TOKEN
    if sequence.output_len == limits.max_tokens or sequence.length == length_limit(config):
        return FinishReason.LENGTH
    return FinishReason.NONE


def resolve(plan: ModelPlan, before: ModelPlan, results: Results, core: ModelCore) -> list[Piece]:
    """Fill in what `plan` waited for; the pieces that drop out of it."""
    index = {id(piece): i for i, piece in enumerate(before.sampling)}
    waiting = [(piece, index[id(piece.source)]) for piece in plan.pieces if piece.source is not None]
    kept = []
    for piece, i in waiting:
        source, offer = piece.source, results.offers[i]
        assert source is not None
        first = len(piece.tokens) + len(offer) - 1
        if is_impossible(source, offer) or first >= length_limit(core.config):
            plan.pieces.remove(piece)
        else:
            piece.start = first
            kept.append((piece, i))
    shares = share_again(kept, waiting, results, again=plan.costed)
    for (piece, i), drafts in zip(kept, shares, strict=True):
        fill(piece, results.offers[i], results.drafts[i][:drafts])
    return [piece for piece, _ in waiting if piece not in plan.pieces]


def share_again(
    kept: Seq[tuple[Piece, int]],
    waiting: Seq[tuple[Piece, int]],
    results: Results,
    *,
    again: bool,
) -> list[int]:
    """Draft rows of the pieces that stay; with a step cost, of those that were planned for all that waited."""
    given = [len(results.drafts[i]) for _, i in kept]
    if not again:
        return [min(piece.rows - 1, count) for (piece, _), count in zip(kept, given, strict=True)]
    total = sum(piece.rows - 1 for piece, _ in waiting)
    rates = []
    for (piece, i), count in zip(kept, given, strict=True):
        rates.append(extended(products(results.confidences[i]), min(piece.most_drafts, count)))
    return distribute(total, rates)


def fill(piece: Piece, offer: Seq[int], drafts: Seq[int]) -> None:
    piece.output_len += len(offer) - 1
    piece.tokens = piece.tokens + list(offer) + list(drafts)
    piece.rows = piece.allowed = 1 + len(drafts)
    piece.source = None
