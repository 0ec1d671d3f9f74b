"""Run-time calibration by medians: property 32 of the specification, against naive recomputation."""

import math
from collections import defaultdict

import numpy as np
import pytest
from di_scheduler._native import GroupedMedian, SlidingMedian
from di_scheduler.cost_curve import CostCurve
from di_scheduler.errors import ConfigError
from di_scheduler.speculation import DraftBudget, SpeculationError
from hypothesis import given
from hypothesis import strategies as st

finite = st.floats(-1e6, 1e6) | st.sampled_from([0.0, 1.0, 2.0])  # the few, so that samples repeat


def naive_median(samples: list[float], min_samples: int) -> float | None:
    return None if len(samples) < min_samples else float(np.median(samples))


def naive_grouped(samples: list[tuple[int, float]], min_samples: int) -> float | None:
    groups = defaultdict(list)
    for group, value in samples:
        groups[group].append(value)
    medians = [float(np.median(values)) for values in groups.values() if len(values) >= min_samples]
    return naive_median(medians, 1)


@given(samples=st.lists(finite, max_size=60), window=st.integers(1, 12), data=st.data())
def test_sliding_median(samples: list[float], window: int, data: st.DataObject) -> None:
    """Property 32, for one stream."""
    min_samples = data.draw(st.integers(1, window), label="min_samples")
    median = SlidingMedian(window, min_samples)
    assert median.value is None
    for count, sample in enumerate(samples, start=1):
        median.add(sample)
        assert median.value == naive_median(samples[max(0, count - window) : count], min_samples)


@given(
    samples=st.lists(st.tuples(st.integers(0, 3), finite), max_size=80),
    window=st.integers(1, 25),
    data=st.data(),
)
def test_grouped_median(samples: list[tuple[int, float]], window: int, data: st.DataObject) -> None:
    """Property 32, for groups that share a window and come and go with it."""
    min_samples = data.draw(st.integers(1, min(window, 5)), label="min_samples")
    median = GroupedMedian(window, min_samples)
    assert median.value is None
    for count, (group, sample) in enumerate(samples, start=1):
        median.add(group, sample)
        assert median.value == naive_grouped(samples[max(0, count - window) : count], min_samples)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_has_no_place_in_an_order_is_refused(bad: float) -> None:
    single, grouped = SlidingMedian(3, 1), GroupedMedian(3, 1)
    single.add(1.0)
    grouped.add(0, 1.0)
    with pytest.raises(SpeculationError, match="sample must be finite"):
        single.add(bad)
    with pytest.raises(SpeculationError, match="sample must be finite"):
        grouped.add(0, bad)
    assert single.value == grouped.value == 1.0


@pytest.mark.parametrize("kind", [SlidingMedian, GroupedMedian])
@pytest.mark.parametrize("sizes", [(0, 0), (3, 0), (3, 4)])
def test_windows_that_never_give_a_value_are_refused(
    kind: type[SlidingMedian] | type[GroupedMedian], sizes: tuple[int, int]
) -> None:
    with pytest.raises(SpeculationError, match="min_samples must be from 1 to window"):
        kind(*sizes)


STEPPED = CostCurve((8, 16, 32), (4.0, 6.0, 10.0), stepped=True)
LINEAR = CostCurve((8, 16, 32), (4.0, 6.0, 10.0), stepped=False)


class NaiveCalibration:
    """The scheduler specification, 12.4, word for word."""

    def __init__(self, curve: CostCurve) -> None:
        self.curve = curve
        self.slopes: list[tuple[int, float]] = []
        self.samplers: list[tuple[int, float]] = []

    def curve_ms(self, rows: int) -> float:
        if self.curve.stepped:
            return self.curve.milliseconds[self.curve.sizes.index(self.size(rows))]
        sizes, times = self.curve.sizes, self.curve.milliseconds
        beyond = max(0, rows - sizes[-1]) * (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
        return float(np.interp(rows, sizes, times)) + beyond

    def size(self, rows: int) -> int:
        return next((size for size in self.curve.sizes if size >= rows), self.curve.sizes[-1])

    def computed(self, rows: int) -> int:
        return self.size(rows) if self.curve.stepped else rows

    def observe(self, num_seqs: int, rows: int, forward_ms: float, sampler_ms: float) -> None:
        slope = (forward_ms - self.curve_ms(rows)) / self.computed(rows)
        self.slopes.append((self.size(rows), slope))
        self.samplers.append((num_seqs, sampler_ms))

    def slope(self) -> float:
        return max(0.0, naive_grouped(self.slopes[-5000:], 10) or 0.0)

    def sampler(self, num_seqs: int) -> float:
        own = [value for n, value in self.samplers if n == num_seqs][-9:]
        everyone = [value for _, value in self.samplers][-9:]
        for samples in (own, everyone):
            median = naive_median(samples, 5)
            if median is not None:
                return median
        return 0.0

    def milliseconds(self, rows: int, num_seqs: int) -> float:
        return self.curve_ms(rows) + self.slope() * self.computed(rows) + self.sampler(num_seqs)


@given(
    steps=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 32), st.floats(0, 20), st.floats(0, 2)),
        min_size=20,
        max_size=60,
    ),
    curve=st.sampled_from([STEPPED, LINEAR]),
    num_seqs=st.integers(1, 5),
    rows=st.integers(1, 32),
)
def test_step_times_are_corrected_by_medians(
    steps: list[tuple[int, int, float, float]], curve: CostCurve, num_seqs: int, rows: int
) -> None:
    """Property 32, for the whole calibration."""
    budget, naive = DraftBudget(curve), NaiveCalibration(curve)
    for n, r, forward_ms, sampler_ms in steps:
        assert budget.observe(num_seqs=n, rows=r, forward_ms=forward_ms, sampler_ms=sampler_ms)
        naive.observe(n, r, forward_ms, sampler_ms)
        assert budget.slope_ms == pytest.approx(naive.slope(), rel=1e-12, abs=1e-15)
    assert budget.milliseconds(rows, num_seqs) == pytest.approx(naive.milliseconds(rows, num_seqs), rel=1e-12)


def test_the_slope_forgets_after_5000_steps() -> None:
    """The window is shared by the sizes: one that is no longer run drops out when 10 of its samples are not left."""
    budget = DraftBudget(STEPPED)

    def run(rows: int, slope: float, steps: int) -> float:
        curve_ms = STEPPED.milliseconds[STEPPED.sizes.index(rows)]
        for _ in range(steps):
            budget.observe(num_seqs=1, rows=rows, forward_ms=curve_ms + rows * slope, sampler_ms=0.0)
        return budget.slope_ms

    assert run(8, 0.5, steps=9) == 0.0
    assert run(8, 0.5, steps=11) == 0.5
    assert run(16, 0.25, steps=4980) == 0.375  # the window is full, and the sizes weigh the same
    assert run(16, 0.25, steps=10) == 0.375
    assert run(16, 0.25, steps=1) == 0.25


def test_steps_faster_than_the_curve_leave_it_alone() -> None:
    budget = DraftBudget(STEPPED)
    for _ in range(20):
        budget.observe(num_seqs=1, rows=8, forward_ms=1.0, sampler_ms=0.0)
    assert budget.slope_ms == 0.0
    assert budget.milliseconds(8, 1) == 4.0


def test_a_step_beyond_a_stepped_curve_teaches_nothing() -> None:
    """Finding 21: the reference reads past its curve there."""
    budget = DraftBudget(STEPPED)
    for _ in range(20):
        assert not budget.observe(num_seqs=1, rows=33, forward_ms=50.0, sampler_ms=1.0)
        assert not budget.observe(num_seqs=1, rows=2**31 - 1, forward_ms=50.0, sampler_ms=1.0)
    assert (budget.slope_ms, budget.milliseconds(32, 1)) == (0.0, 10.0)
    linear = DraftBudget(LINEAR)
    for _ in range(20):
        assert linear.observe(num_seqs=1, rows=64, forward_ms=18.0 + 64 * 0.25, sampler_ms=1.0)
    assert linear.slope_ms == 0.25
    assert linear.milliseconds(64, 1) == 18.0 + 64 * 0.25 + 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_a_time_that_is_none_teaches_nothing(bad: float) -> None:
    budget = DraftBudget(STEPPED)
    for _ in range(20):
        assert not budget.observe(num_seqs=1, rows=8, forward_ms=bad, sampler_ms=1.0)
        assert not budget.observe(num_seqs=1, rows=8, forward_ms=9.0, sampler_ms=bad)
    assert budget.milliseconds(8, 1) == 4.0


def test_counts_out_of_range_are_refused() -> None:
    budget = DraftBudget(STEPPED)
    with pytest.raises(ConfigError, match="num_seqs must be an integer from 1"):
        budget.observe(num_seqs=0, rows=8, forward_ms=9.0, sampler_ms=1.0)
    with pytest.raises(ConfigError, match="rows must be an integer from 1"):
        budget.observe(num_seqs=1, rows=0, forward_ms=9.0, sampler_ms=1.0)


def test_a_slower_device_verifies_fewer_drafts() -> None:
    """What calibration is for: rows that turn out dear shrink the budget."""
    rates = np.full(24, 0.5, np.float32)
    budget = DraftBudget(CostCurve((8, 32), (4.0, 4.0), stepped=False))
    assert budget.choose_total(rates, base_rows=8, num_seqs=8) == 24
    for _ in range(10):
        budget.observe(num_seqs=8, rows=32, forward_ms=4.0 + 32 * 2.0, sampler_ms=0.0)
    assert budget.choose_total(rates, base_rows=8, num_seqs=8) == 0
