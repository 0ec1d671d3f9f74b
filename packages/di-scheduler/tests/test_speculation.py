"""How many drafts are verified, and whose: properties 29 to 31 of the specification, against brute force."""

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from di_scheduler.cost_curve import CostCurve
from di_scheduler.errors import ConfigError
from di_scheduler.speculation import DraftBudget, SpeculationError, accumulate_rates, distribute_drafts
from hypothesis import example, given
from hypothesis import strategies as st

FLAT = CostCurve((1, 1 << 20), (1.0, 1.0), stepped=True)


def float32(values: npt.ArrayLike) -> np.ndarray:
    return np.array(values, np.float32)


def flat(per_sequence: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    """The values in a row, and where each sequence's begin."""
    starts = np.cumsum([0, *(len(values) for values in per_sequence)]).astype(np.int32)
    return float32([value for values in per_sequence for value in values]), starts


@st.composite
def rates_of_sequences(draw: st.DrawFn, max_seqs: int = 4, max_drafts: int = 4) -> list[list[float]]:
    """Non-increasing sixteenths, whose sums are exact in every order and which tie often."""
    sixteenths = st.lists(st.integers(0, 16), max_size=max_drafts)
    sequences = draw(st.lists(sixteenths, min_size=1, max_size=max_seqs))
    return [[value / 16 for value in sorted(values, reverse=True)] for values in sequences]


@st.composite
def curves(draw: st.DrawFn, stepped: bool, start: int = 1) -> CostCurve:
    """Whole milliseconds; between points of a linear curve the slopes are exact too."""
    gaps = draw(st.lists(st.sampled_from([1, 2, 4, 8]), max_size=5))
    sizes = tuple(itertools.accumulate(gaps, initial=start))
    times = draw(st.lists(st.integers(1, 20), min_size=len(sizes), max_size=len(sizes)))
    return CostCurve(sizes, tuple(float(value) for value in times), stepped)


def step_time(curve: CostCurve, rows: int) -> Fraction | None:
    """The time of a step straight from the definition; None where there is no such step."""
    points = list(zip(curve.sizes, map(Fraction, curve.milliseconds), strict=True))
    if curve.stepped:
        return next((ms for size, ms in points if size >= rows), None)
    if rows <= points[0][0]:
        return points[0][1]
    slope = Fraction(0)
    for (low, t_low), (high, t_high) in itertools.pairwise(points):
        slope = (t_high - t_low) / (high - low)
        if rows <= high:
            return t_low + slope * (rows - low)
    return points[-1][1] + max(slope, Fraction(0)) * (rows - points[-1][0])


@dataclass(frozen=True)
class Choice:
    """One question to the planner."""

    curve: CostCurve
    rates: list[list[float]]
    other_rows: int = 0  # of the step, besides one for each sequence
    max_drafts: int = 99

    @property
    def base_rows(self) -> int:
        return len(self.rates) + self.other_rows

    def brute_force(self) -> int:
        """The smallest total that a best choice of prefixes has, over all choices."""
        candidates = []
        for lengths in itertools.product(*(range(len(rates) + 1) for rates in self.rates)):
            total = sum(lengths)
            duration = step_time(self.curve, self.base_rows + total)
            if total > self.max_drafts or duration is None:
                continue
            chosen = [rate for rates, n in zip(self.rates, lengths, strict=True) for rate in rates[:n]]
            candidates.append(((len(self.rates) + sum(map(Fraction, chosen))) / duration, -total))
        return -max(candidates)[1]


@st.composite
def choices(draw: st.DrawFn) -> Choice:
    rates = draw(rates_of_sequences())
    other_rows = draw(st.integers(0, 3))
    stepped = draw(st.booleans())
    base_rows = len(rates) + other_rows
    start = draw(st.integers(base_rows, base_rows + 4) if stepped else st.integers(1, 12))
    return Choice(draw(curves(stepped, start)), rates, other_rows, draw(st.integers(0, 17)))


@given(choice=choices(), order=st.randoms(use_true_random=False))
# First no gain, then one; and no gain at all.
@example(Choice(CostCurve((1, 3), (2.0, 3.0), stepped=True), [[0.5, 0.5]]), Random(0))
@example(Choice(CostCurve((1, 2), (2.0, 3.0), stepped=True), [[0.5, 0.5]]), Random(0))
@example(Choice(CostCurve((1, 2), (4.0, 2.0), stepped=False), [[0.5] * 4]), Random(0))  # a curve that falls
def test_the_total_is_the_smallest_best_of_all_choices(choice: Choice, order: Random) -> None:
    """Property 29, first half: brute force over every prefix of every sequence; rates in any order."""
    values = [rate for rates in choice.rates for rate in rates]
    order.shuffle(values)
    total = DraftBudget(choice.curve).choose_total(
        float32(values),
        base_rows=choice.base_rows,
        num_seqs=len(choice.rates),
        max_drafts=choice.max_drafts,
    )
    assert total == choice.brute_force()


@given(data=st.data(), rates=rates_of_sequences(max_seqs=8, max_drafts=5))
def test_the_split_keeps_the_total_and_every_first_row(data: st.DataObject, rates: list[list[float]]) -> None:
    """Property 29, second half: lengths sum to the chosen total, each between 1 and 1 + its drafts."""
    values, starts = flat(rates)
    total = data.draw(st.integers(0, len(values)), label="total")
    lengths = 1 + distribute_drafts(values, starts, total)
    assert lengths.dtype == np.int32
    assert lengths.sum() == len(rates) + total
    assert (lengths >= 1).all()
    assert (lengths <= 1 + np.diff(starts)).all()


confidences = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]) | st.floats(0, 1, width=32)


@given(data=st.data(), rows=st.lists(st.lists(confidences, max_size=5), min_size=1, max_size=5))
def test_later_confidences_never_decide_about_a_draft(data: st.DataObject, rows: list[list[float]]) -> None:
    """Property 30: with the total fixed, confidences after draft i change nothing about drafts up to i."""
    values, starts = flat(rows)
    total = data.draw(st.integers(0, len(values)), label="total")
    seq = data.draw(st.integers(0, len(rows) - 1), label="sequence")
    draft = data.draw(st.integers(0, max(len(rows[seq]) - 1, 0)), label="draft")
    changed = values.copy()
    for i in range(starts[seq] + draft + 1, starts[seq + 1]):
        changed[i] = data.draw(confidences, label=f"confidence {i}")
    before, after = (
        distribute_drafts(accumulate_rates(each, starts), starts, total) for each in (values, changed)
    )
    assert (before[seq] > draft) == (after[seq] > draft)


def device_ranking(confidence: np.ndarray, total: int) -> np.ndarray:
    """Drafts of each sequence by the device's rule (scheduler spec, 13.2): int [S] from confidences [S, n]."""
    rates = np.cumprod(confidence, axis=1, dtype=np.float32).ravel()
    index = np.arange(rates.size)
    larger = rates[None, :] > rates[:, None]
    equal_before = (rates[None, :] == rates[:, None]) & (index[None, :] < index[:, None])
    rank = (larger | equal_before).sum(axis=1)
    taken: np.ndarray = (rank < total).reshape(confidence.shape).sum(axis=1)
    return taken


@given(
    data=st.data(), num_seqs=st.integers(1, 12), num_drafts=st.integers(0, 6), seed=st.integers(0, 2**32 - 1)
)
def test_the_split_equals_the_device_ranking(
    data: st.DataObject, num_seqs: int, num_drafts: int, seed: int
) -> None:
    """Property 31."""
    rng = np.random.default_rng(seed)
    confidence = rng.random((num_seqs, num_drafts), np.float32)
    coarse = data.draw(st.booleans(), label="coarse, so that rates tie")
    if coarse:
        confidence = float32(np.round(confidence * 2) / 2)
    total = data.draw(st.integers(0, confidence.size), label="total")
    starts = (np.arange(num_seqs + 1) * num_drafts).astype(np.int32)
    taken = distribute_drafts(accumulate_rates(confidence.ravel(), starts), starts, total)
    assert taken.tolist() == device_ranking(confidence, total).tolist()


def test_ties_go_to_the_lower_sequence() -> None:
    rates, starts = flat([[0.5, 0.25], [0.5, 0.5], [0.5]])
    assert [distribute_drafts(rates, starts, k).tolist() for k in range(6)] == [
        [0, 0, 0],
        [1, 0, 0],
        [1, 1, 0],
        [1, 2, 0],
        [1, 2, 1],
        [2, 2, 1],
    ]


@dataclass(frozen=True)
class Token0:
    """The counter-example of the decoding specification, 10.6: one sequence with two drafts."""

    target = Fraction(7, 10)  # probability of token 0 under the model
    draft = Fraction(1, 2)  # and under the draft model
    curve = CostCurve((1, 2, 3), (1.0, 1 / 0.5, 1 / 0.45), stepped=True)

    def rates(self, first_draft: int) -> np.ndarray:
        """The second confidence is drawn after the first draft, and knows it."""
        return float32([0.8, 0.8 * 0.9 if first_draft == 0 else 0.0])

    def total(self, rates: np.ndarray) -> int:
        return DraftBudget(self.curve).choose_total(rates, base_rows=1, num_seqs=1)

    def after_verifying(self, first_draft: int) -> Fraction:
        """Chance of token 0 when the first draft is verified: accepted, or drawn anew from the residual."""
        if first_draft == 0:
            return min(Fraction(1), self.target / self.draft)
        accepted = min(Fraction(1), (1 - self.target) / (1 - self.draft))
        return 1 - accepted  # the residual is all on token 0, which the draft model underrates

    def output(self, total_given: dict[int, int]) -> Fraction:
        """Chance that the step's first token is 0, when `total_given[d]` drafts are verified after first draft d."""
        chance = {0: self.draft, 1: 1 - self.draft}
        return sum(
            (p * (self.after_verifying(d) if total_given[d] > 0 else self.target) for d, p in chance.items()),
            start=Fraction(0),
        )


def test_a_budget_from_current_confidences_is_biased_and_an_older_one_is_not() -> None:
    """Why the total comes from round N-2: the second confidence betrays the first draft."""
    case = Token0()
    current = {d: case.total(case.rates(d)) for d in (0, 1)}
    assert current == {0: 2, 1: 0}  # the draft is verified exactly when it is token 0
    assert case.output(current) == Fraction(85, 100)
    for older in (case.rates(0), case.rates(1)):  # whatever the round before looked like
        total = case.total(older)
        assert case.output({0: total, 1: total}) == case.target


@given(values=st.lists(st.floats(width=32), max_size=6))
@example(values=[0.5, math.nan, 1.0])
@example(values=[math.inf, -math.inf, 0.5])
@example(values=[-0.0, 0.5])
def test_a_bad_confidence_costs_its_drafts_and_nothing_else(values: list[float]) -> None:
    """NaN and what is below 0 count as 0, what is above 1 as 1; the other sequences do not notice."""
    good = [0.75, 0.5]
    rates, starts = flat([good, values, good])
    rates = accumulate_rates(rates, starts)
    assert rates.dtype == np.float32
    assert rates[:2].tolist() == rates[-2:].tolist() == [0.75, 0.375]
    usable = np.clip(np.nan_to_num(float32(values), nan=0.0, posinf=1.0, neginf=0.0), 0.0, 1.0)
    assert rates[2:-2].tolist() == np.cumprod(usable, dtype=np.float32).tolist()
    assert not np.signbit(rates).any()
    taken = distribute_drafts(rates, starts, len(rates))
    assert taken.tolist() == [2, len(values), 2]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -0.5, 1.5])
def test_a_bad_rate_is_refused(bad: float) -> None:
    """Rates are computed, by `accumulate_rates`, so a bad one is a mistake of the caller."""
    rates, starts = flat([[0.5, bad]])
    with pytest.raises(SpeculationError, match=r"rates\[1\] must be from 0 to 1"):
        distribute_drafts(rates, starts, 1)
    with pytest.raises(SpeculationError, match=r"rates\[1\] must be from 0 to 1"):
        DraftBudget(FLAT).choose_total(rates, base_rows=1, num_seqs=1)


def test_rates_that_rise_within_a_sequence_are_refused() -> None:
    rates, starts = flat([[0.5], [0.25, 0.5]])
    with pytest.raises(SpeculationError, match=r"sequence 1, but rates\[2\] = 0.5.* follows 0.25"):
        distribute_drafts(rates, starts, 1)


@pytest.mark.parametrize("starts", [[], [1, 2], [0, 1], [0, 3], [0, 2, 1, 2], [0, -1, 2]])
def test_starts_that_do_not_delimit_the_drafts_are_refused(starts: list[int]) -> None:
    rates, bounds = float32([0.5, 0.25]), np.array(starts, np.int32)
    with pytest.raises(SpeculationError, match="starts must"):
        distribute_drafts(rates, bounds, 1)
    with pytest.raises(SpeculationError, match="starts must"):
        accumulate_rates(rates, bounds)


def test_counts_out_of_range_are_refused() -> None:
    rates, starts = flat([[0.5, 0.25]])
    with pytest.raises(SpeculationError, match="total must be from 0 to the number of rates, 2, got 3"):
        distribute_drafts(rates, starts, 3)
    with pytest.raises(ConfigError, match="total must be an integer from 0"):
        distribute_drafts(rates, starts, -1)
    budget = DraftBudget(CostCurve((1, 4), (1.0, 2.0), stepped=True))
    with pytest.raises(SpeculationError, match=r"rows must be from 1 to 4, .*, got 5"):
        budget.choose_total(rates, base_rows=5, num_seqs=1)
    with pytest.raises(SpeculationError, match="base_rows must be at least 2, got 1"):
        budget.choose_total(rates, base_rows=1, num_seqs=2)
    with pytest.raises(ConfigError, match="max_drafts must be an integer from 0"):
        budget.choose_total(rates, base_rows=1, num_seqs=1, max_drafts=-1)
    with pytest.raises(TypeError, match="rates must be an aligned"):
        distribute_drafts(rates.astype(np.float64), starts, 1)
    with pytest.raises(TypeError, match="starts must be an aligned"):
        accumulate_rates(rates, starts.astype(np.int64))


def test_nothing_to_choose() -> None:
    """No sequences, no drafts, no budget: 0, even where no step could run."""
    budget = DraftBudget(CostCurve((1,), (1.0,), stepped=True))
    none, starts = float32([]), np.zeros(1, np.int32)
    assert accumulate_rates(none, starts).tolist() == []
    assert distribute_drafts(none, starts, 0).tolist() == []
    assert distribute_drafts(none, np.zeros(4, np.int32), 0).tolist() == [0, 0, 0]
    assert budget.choose_total(none, base_rows=0, num_seqs=0) == 0
    assert budget.choose_total(none, base_rows=9, num_seqs=9) == 0
    assert budget.choose_total(float32([1.0]), base_rows=9, num_seqs=9, max_drafts=0) == 0


def test_one_draft() -> None:
    """Worth it at 1 + rate > the step's slowdown; not at equality."""
    budget = DraftBudget(CostCurve((1, 2), (4.0, 6.0), stepped=True))
    totals = [budget.choose_total(float32([r]), base_rows=1, num_seqs=1) for r in (0.25, 0.5, 0.5625)]
    assert totals == [0, 0, 1]


def test_missing_rates_of_ones_take_every_draft_and_zeros_none() -> None:
    """What the scheduler puts where a sequence has no rates: 1 with real drafts, else 0 (scheduler spec, 12.2)."""
    budget = DraftBudget(FLAT)
    assert budget.choose_total(np.ones(40, np.float32), base_rows=8, num_seqs=8) == 40
    assert budget.choose_total(np.zeros(40, np.float32), base_rows=8, num_seqs=8) == 0


def many_rates(rng: np.random.Generator, size: int) -> np.ndarray:
    return rng.random(size, np.float32) ** np.float32(0.3)


@given(seed=st.integers(0, 2**32 - 1), coarse=st.booleans(), size=st.sampled_from([255, 256, 257, 5 * 1024]))
@example(seed=0, coarse=True, size=5 * 1024)
def test_many_drafts(seed: int, coarse: bool, size: int) -> None:
    """As many as a large engine has, against a vectorised definition that adds in the same order."""
    rng = np.random.default_rng(seed)
    num_seqs = size // 5
    rates = many_rates(rng, size)
    if coarse:
        rates = np.round(rates * 8) / 8
    rates[:3] = [0.0, -0.0, 1.0]
    curve = CostCurve((1, num_seqs + size), (1.0, 2.0 + rng.random() * num_seqs / 50), stepped=False)
    budget = DraftBudget(curve)
    expected = np.cumsum([num_seqs, *np.sort(rates)[::-1].astype(np.float64)])
    times = np.array([budget.milliseconds(num_seqs + m, num_seqs) for m in range(size + 1)])
    assert budget.choose_total(rates, base_rows=num_seqs, num_seqs=num_seqs) == np.argmax(expected / times)


@pytest.mark.parametrize("bit", range(22))
@pytest.mark.parametrize("size", [8, 1024])
def test_the_best_of_many_drafts_is_found_by_its_last_bit(size: int, bit: int) -> None:
    """A draft pays if its rate is above a threshold, a second one never does; all rates but one are the threshold."""
    rates = np.full(size, 0.6, np.float32)
    budget = DraftBudget(CostCurve((1, 2, 3), (2.0, 2.0 * (1.0 + float(rates[0])), 1e6), stepped=True))
    assert budget.choose_total(rates, base_rows=1, num_seqs=1) == 0
    rates.view(np.uint32)[size // 2] += np.uint32(1 << bit)
    assert budget.choose_total(rates, base_rows=1, num_seqs=1) == 1


def test_a_million_drafts() -> None:
    """O(D log D): looking at pairs of drafts would take hours."""
    num_seqs = 200_000
    starts = (np.arange(num_seqs + 1) * 5).astype(np.int32)
    rates = accumulate_rates(many_rates(np.random.default_rng(0), 5 * num_seqs), starts)
    budget = DraftBudget(CostCurve((1, 1 << 22), (1.0, 9.0), stepped=False))
    total = budget.choose_total(rates, base_rows=num_seqs, num_seqs=num_seqs)
    rows = num_seqs + np.arange(len(rates) + 1)
    accepted = num_seqs + np.concatenate(([0.0], np.cumsum(np.sort(rates)[::-1], dtype=np.float64)))
    per_millisecond = accepted / (1.0 + 8.0 * (rows - 1) / ((1 << 22) - 1))
    assert 0 < total < len(rates)
    assert per_millisecond[total] >= per_millisecond.max() * (1 - 1e-9)
    lengths = distribute_drafts(rates, starts, total)
    chosen = np.arange(5) < lengths[:, None]
    assert chosen.sum() == total
    assert rates.reshape(-1, 5)[chosen].min() >= rates.reshape(-1, 5)[~chosen].max()


@given(curve=st.booleans().flatmap(curves), rows=st.integers(1, 60))
@example(curve=CostCurve((1, 2), (4.0, 2.0), stepped=False), rows=3)
def test_step_times_follow_the_curve(curve: CostCurve, rows: int) -> None:
    expected = step_time(curve, rows)
    budget = DraftBudget(curve)
    if expected is None:
        with pytest.raises(SpeculationError, match=f"rows must be from 1 to {curve.sizes[-1]}"):
            budget.milliseconds(rows, 1)
    else:
        assert budget.milliseconds(rows, 1) == float(expected)
