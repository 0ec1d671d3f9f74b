"""How many draft rows each decode of a step gets, by brute force."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Cost = Callable[[int, int], float]  # (rows, sequences) -> milliseconds


@dataclass(frozen=True)
class DraftWish:
    """What one decode could use."""

    most: int
    total_rates: list[float]  # for the total of the step
    rates: list[float]  # for the distribution


def extended(rates: Sequence[float], count: int) -> list[float]:
    """`count` rates; the last one repeats, and without any they are 1."""
    known = list(rates[:count])
    return known + [known[-1] if known else 1.0] * (count - len(known))


def best_total(cost: Cost, num_seqs: int, most: int, rates: Sequence[float]) -> int:
    """The fewest drafts with the most expected tokens per time."""
    ranked = sorted(rates, reverse=True)
    best, best_speed = 0, -1.0
    for drafts in range(min(most, len(ranked)) + 1):
        speed = (num_seqs + sum(ranked[:drafts])) / cost(num_seqs + drafts, num_seqs)
        if speed > best_speed:
            best, best_speed = drafts, speed
    return best


def distribute(total: int, rates: Sequence[Sequence[float]]) -> list[int]:
    """The `total` best drafts; of equal ones those with the lower index."""
    flat = [(-rate, i, j) for i, row in enumerate(rates) for j, rate in enumerate(row)]
    taken = sorted(flat)[:total]
    return [sum(i == owner for _, owner, _ in taken) for i in range(len(rates))]


def share_drafts(wishes: Sequence[DraftWish], budget: int, cost: Cost | None) -> list[int]:
    """Drafts of each decode in a step of `budget` rows."""
    most = min(sum(wish.most for wish in wishes), max(budget - len(wishes), 0))
    if cost is not None and wishes:
        rates = [rate for wish in wishes for rate in extended(wish.total_rates, wish.most)]
        most = best_total(cost, len(wishes), most, rates)
    return distribute(most, [extended(wish.rates, wish.most) for wish in wishes])
