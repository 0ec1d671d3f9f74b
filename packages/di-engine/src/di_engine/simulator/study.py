"""What the reference's rule for prefill costs: the same traces under its rule and under ours."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from dataclasses import dataclass

from di_scheduler import SchedulerConfig, StepPolicy

from di_engine.simulator._checks import check_integer, check_number
from di_engine.simulator.curve import StepCurve
from di_engine.simulator.limits import LEAST_RATE, MOST_RANKS, MOST_RATE, MOST_REQUESTS
from di_engine.simulator.report import Summary, summarize
from di_engine.simulator.rules import StepRule
from di_engine.simulator.simulation import SimulationConfig, simulate
from di_engine.simulator.synthetic import SyntheticTrace


class Contender(enum.Enum):
    """Who decides what a step holds."""

    REFERENCE = "reference"
    """One kind a step, prefill attempted every 70 (all ranks want it) and 100 (one does) decode steps."""
    HOMOGENEOUS = "homogeneous"
    """Ours, one kind a step: the kinds take turns; data-parallel ranks agree by vote."""
    MIXED = "mixed"
    """Ours: decodes and prefill chunks share a step."""


@dataclass(frozen=True, slots=True)
class StudyConfig:
    """Which traces are served, and on what.

    Raises :class:`~di_engine.simulator.errors.SimulationConfigError` naming the first field out of range.
    """

    trace: SyntheticTrace
    """Of one rank at the first rate; every point changes its ``rate`` and the number of requests."""
    scheduler: SchedulerConfig
    """Of every rank; policy, longest sequence and synchronous scheduling are set by the study."""
    curve: StepCurve
    rates: tuple[float, ...]
    """Requests a second and rank."""
    ranks: tuple[int, ...] = (1, 4)
    """Data-parallel ranks in lockstep."""

    def __post_init__(self) -> None:
        for count in self.ranks:
            check_integer("ranks", count, 1, MOST_RANKS)
        most = max(self.ranks, default=1)
        check_integer("requests", self.trace.requests, 0, MOST_REQUESTS // most)
        for rate in self.rates:
            check_number("rates", rate, LEAST_RATE, MOST_RATE / most)


@dataclass(frozen=True, slots=True)
class StudyPoint:
    """One simulation of the study."""

    contender: Contender
    ranks: int
    rate: float
    """Requests a second and rank."""
    summary: Summary


def compare_rules(
    config: StudyConfig, progress: Callable[[StudyPoint], None] = lambda point: None
) -> list[StudyPoint]:
    """Serve the same trace under every contender, for every number of ranks and every rate.

    A point of n ranks has n times the requests and n times the rate of one rank. ``progress`` is called after each.
    """
    points = []
    for ranks in config.ranks:
        for rate in config.rates:
            trace = dataclasses.replace(
                config.trace, rate=rate * ranks, requests=config.trace.requests * ranks
            ).generate()
            for contender in Contender:
                run = simulate(trace, _simulation(config, contender, ranks, max(2, trace.longest)))
                points.append(StudyPoint(contender, ranks, rate, summarize(run)))
                progress(points[-1])
    return points


def _simulation(config: StudyConfig, contender: Contender, ranks: int, longest: int) -> SimulationConfig:
    policy = StepPolicy.MIXED if contender is Contender.MIXED else StepPolicy.HOMOGENEOUS
    scheduler = dataclasses.replace(
        config.scheduler, policy=policy, max_model_len=longest, max_steps_in_flight=1
    )
    rule = StepRule.REFERENCE if contender is Contender.REFERENCE else StepRule.OWN
    return SimulationConfig(scheduler, config.curve, ranks=ranks, lockstep=True, rule=rule)
