"""Field report R58, the part inside one process: load reports come late, and requests still do not pile up."""

from __future__ import annotations

import numpy as np
import pytest
from di_engine.simulator import (
    BalanceMode,
    Balancer,
    FixedLengths,
    LoadSnapshot,
    NoRankError,
    SimulationConfig,
    SyntheticTrace,
    Trace,
    ZipfLengths,
    simulate,
    summarize,
)
from di_engine.simulator import simulation as simulation_module
from di_scheduler import SchedulerConfig

RANKS = 4


def reporting(ranks: int = RANKS, **settings: object) -> Balancer:
    balancer = Balancer(ranks, **settings)
    for rank in range(ranks):
        balancer.update(LoadSnapshot(rank, 0.0, received=0, tokens=0))
    return balancer


# --- the balancer alone


def test_equal_requests_go_round() -> None:
    balancer = reporting()
    assert [balancer.route(100, 0.0) for _ in range(9)] == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_tokens_count_not_requests() -> None:
    balancer = reporting(2)
    assert balancer.route(1000, 0.0) == 0
    assert [balancer.route(10, 0.0) for _ in range(20)] == [1] * 20


def test_a_late_snapshot_does_not_forget_what_was_routed_since() -> None:
    """The heart of R58: the snapshot was taken before the second request reached the rank."""
    balancer = reporting(2)
    assert balancer.route(500, 0.0) == 0
    assert balancer.route(500, 0.0) == 1
    assert balancer.route(400, 0.1) == 0
    balancer.update(LoadSnapshot(0, taken=0.05, received=1, tokens=510))
    assert balancer.load(0) == 510 + 400
    balancer.update(LoadSnapshot(0, taken=0.2, received=2, tokens=930))
    assert balancer.load(0) == 930
    assert balancer.load(1) == 500


def test_a_snapshot_older_than_what_is_known_changes_nothing() -> None:
    balancer = reporting(2)
    balancer.update(LoadSnapshot(0, taken=2.0, received=0, tokens=700))
    balancer.update(LoadSnapshot(0, taken=1.0, received=0, tokens=5))
    assert balancer.load(0) == 700


def test_a_rank_that_never_reported_or_fell_silent_gets_nothing() -> None:
    balancer = Balancer(3, silence=1.0)
    with pytest.raises(NoRankError, match="none of 3 ranks"):
        balancer.route(1, 0.0)
    balancer.update(LoadSnapshot(0, 0.0, 0, 0))
    balancer.update(LoadSnapshot(1, 0.0, 0, 0))
    assert {balancer.route(1, 0.5) for _ in range(10)} == {0, 1}
    balancer.update(LoadSnapshot(1, 2.0, 5, 5))
    assert {balancer.route(1, 2.5) for _ in range(10)} == {1}
    balancer.update(LoadSnapshot(0, 2.6, 5, 5))  # back again
    assert {balancer.route(1, 2.6) for _ in range(30)} == {0, 1}


def test_round_robin_looks_at_no_load() -> None:
    balancer = reporting(3, mode=BalanceMode.ROUND_ROBIN)
    balancer.update(LoadSnapshot(1, 1.0, 0, 10**6))
    assert [balancer.route(5, 1.0) for _ in range(6)] == [0, 1, 2, 0, 1, 2]


# --- with ranks that serve


def imbalance(trace: Trace, **settings: object) -> float:
    found = summarize(simulate(trace, configuration(trace, **settings))).imbalance
    assert found is not None
    return found


def configuration(trace: Trace, **settings: object) -> SimulationConfig:
    scheduler = SchedulerConfig(num_blocks=8192, num_slots=257, max_model_len=trace.longest)
    return SimulationConfig(scheduler, ranks=RANKS, **settings)


@pytest.fixture(scope="module")
def zipf() -> Trace:
    return SyntheticTrace(
        requests=1500, rate=60.0, prompt=ZipfLengths(1.1, 4096), output=ZipfLengths(1.1, 1024)
    ).generate()


@pytest.fixture(scope="module")
def oracle(zipf: Trace) -> float:
    """Imbalance when every load is known exactly at every decision."""
    return imbalance(zipf, clairvoyant=True)


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.5])
def test_load_stays_level_however_late_reports_are(zipf: Trace, oracle: float, delay: float) -> None:
    assert imbalance(zipf, snapshot_delay=delay) <= 1.1 * oracle


class Forgetful(Balancer):
    """What R58 reports: a snapshot, however old, replaces what was counted since."""

    def update(self, snapshot: LoadSnapshot) -> None:
        view = self._views[snapshot.rank]
        view.pending.clear()
        view.pending_tokens = 0
        view.tokens, view.taken = snapshot.tokens, snapshot.taken


def test_the_reported_defect_shows_where_requests_live_no_longer_than_reports_travel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Answers of half a second and reports as old: half of what a rank holds is not in its report."""
    short = SyntheticTrace(
        requests=1500, rate=400.0, prompt=ZipfLengths(1.0, 512), output=ZipfLengths(1.0, 64)
    ).generate()
    oracle = imbalance(short, clairvoyant=True)
    assert imbalance(short, snapshot_delay=0.5) < 1.2 * oracle
    monkeypatch.setattr(simulation_module, "Balancer", Forgetful)
    assert imbalance(short, snapshot_delay=0.5) > 1.3 * oracle


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("rate", [20.0, 60.0])
def test_equal_requests_are_spread_equally(rate: float, delay: float) -> None:
    trace = SyntheticTrace(
        requests=501, rate=rate, prompt=FixedLengths(200), output=FixedLengths(100)
    ).generate()
    run = simulate(trace, configuration(trace, snapshot_delay=delay))
    counts = np.bincount(run.rank_of, minlength=RANKS)
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_dead_rank_gets_nothing(lockstep: bool) -> None:
    trace = SyntheticTrace(requests=200, rate=60.0).generate()
    settings = configuration(trace, dead_ranks=frozenset({1}), lockstep=lockstep, snapshot_delay=0.5)
    run = simulate(trace, settings)
    counts = np.bincount(run.rank_of, minlength=RANKS)
    assert counts[1] == 0
    assert (counts[[0, 2, 3]] > 0).all()
    assert summarize(run).finished == len(trace)
