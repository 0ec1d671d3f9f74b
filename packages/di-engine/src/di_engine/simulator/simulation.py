"""Discrete-event simulation of serving: the real scheduler, in virtual time."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
from di_scheduler import SchedulerConfig, SchedulerStats, StepPolicy
from numpy.typing import NDArray

from di_engine.simulator._checks import check_integer, check_number
from di_engine.simulator.balance import TIE_REQUESTS, BalanceMode, Balancer
from di_engine.simulator.curve import StepCurve
from di_engine.simulator.errors import SimulationConfigError, StuckError
from di_engine.simulator.group import Group, GroupCounters
from di_engine.simulator.limits import (
    LEAST_INTERVAL,
    MOST_BLOCK_SIZE,
    MOST_BLOCKS,
    MOST_INTERVAL,
    MOST_RANKS,
    MOST_REPORTS,
    MOST_ROWS,
    MOST_RUNNING,
    MOST_SEED,
)
from di_engine.simulator.rank import Rank
from di_engine.simulator.record import Recorder
from di_engine.simulator.reports import LoadReporter
from di_engine.simulator.rules import StepRule, make_planner
from di_engine.simulator.trace import Trace


@dataclass(frozen=True, slots=True)
class SimulationConfig:
    """What is simulated. Raises :class:`SimulationConfigError` naming the first field out of range."""

    scheduler: SchedulerConfig
    """Of every rank; ``max_steps_in_flight`` 2 makes scheduling asynchronous, ``max_draft_tokens`` gives drafts."""
    curve: StepCurve = field(default_factory=StepCurve)
    ranks: int = 1
    """Data-parallel ranks, each with a scheduler."""
    lockstep: bool = True
    """Whether the ranks step together, as expert parallelism makes them; else they are replicas."""
    rule: StepRule = StepRule.OWN
    """The reference's rule needs the homogeneous policy, lockstep and synchronous scheduling."""
    balance: BalanceMode = BalanceMode.LEAST_LOADED
    snapshot_interval: float = 0.1
    """Seconds between the reports of a rank's load."""
    snapshot_delay: float = 0.0
    """Seconds until a report arrives at the balancer, at most 1000 intervals."""
    clairvoyant: bool = False
    """The balancer knows every load at the moment it decides: what no system does."""
    dead_ranks: frozenset[int] = frozenset()
    """Ranks that never report and never step."""
    acceptance: float = 0.7
    """The chance that a draft is accepted when those before it are."""
    seed: int = 0
    """Of the acceptance of drafts."""

    def __post_init__(self) -> None:
        check_integer("num_blocks", self.scheduler.num_blocks, 2, MOST_BLOCKS)
        check_integer("block_size", self.scheduler.block_size, 1, MOST_BLOCK_SIZE)
        check_integer("max_num_seqs", self.scheduler.max_num_seqs, 1, MOST_RUNNING)
        check_integer("max_num_batched_tokens", self.scheduler.max_num_batched_tokens, 1, MOST_ROWS)
        check_integer("ranks", self.ranks, 1, MOST_RANKS)
        check_number("snapshot_interval", self.snapshot_interval, LEAST_INTERVAL, MOST_INTERVAL)
        check_number("snapshot_delay", self.snapshot_delay, 0, MOST_REPORTS * self.snapshot_interval)
        check_integer("seed", self.seed, 0, MOST_SEED)
        check_number("acceptance", self.acceptance, 0, 1)
        if not self.dead_ranks < set(range(self.ranks)):
            raise SimulationConfigError("dead_ranks", sorted(self.dead_ranks), "some of the ranks, not all")
        if self.rule is StepRule.REFERENCE:
            if self.scheduler.policy is not StepPolicy.HOMOGENEOUS:
                raise SimulationConfigError(
                    "policy", self.scheduler.policy, "homogeneous under the reference's rule"
                )
            if self.scheduler.max_steps_in_flight != 1:
                raise SimulationConfigError("max_steps_in_flight", 2, "1 under the reference's rule")


@dataclass(frozen=True, slots=True, eq=False)
class SimulationRun:
    """What a simulation leaves behind; :func:`~di_engine.simulator.report.summarize` makes figures of it."""

    config: SimulationConfig
    recorder: Recorder
    stats: tuple[SchedulerStats, ...]
    """Of every rank's scheduler, at the end."""
    counters: tuple[GroupCounters, ...]
    """Of every group."""
    seconds: float
    """Virtual time of the last event."""
    rank_of: NDArray[np.int32]
    """[n] the rank of each request."""
    refused: NDArray[np.bool_]
    """[n] requests that the scheduler refused."""
    weights: NDArray[np.float64]
    """[samples] for how many intervals each sample of the load stands: whole numbers, too large for integers when the
    terms of the curve are."""
    held_tokens: NDArray[np.int64]
    """[samples, ranks alive] tokens of unfinished requests."""
    used_blocks: NDArray[np.int64]
    """[samples, ranks alive] blocks in use."""


def simulate(trace: Trace, config: SimulationConfig) -> SimulationRun:
    """Serve a trace in virtual time. The same trace and configuration give the same run.

    Raises :class:`StuckError` if the scheduler leaves requests unfinished.
    """
    return _Simulation(trace, config).run()


class _Simulation:
    """The event loop: requests arrive, groups advance at the times they asked for."""

    def __init__(self, trace: Trace, config: SimulationConfig) -> None:
        self._trace = trace
        self._config = config
        self._recorder = Recorder(trace)
        self._ranks = {
            number: Rank(trace, config.scheduler, config.acceptance, config.seed)
            for number in range(config.ranks)
            if number not in config.dead_ranks
        }
        members = [list(self._ranks)] if config.lockstep else [[number] for number in self._ranks]
        self._groups = [self._make_group(numbers) for numbers in members]
        self._group_of = {number: index for index, numbers in enumerate(members) for number in numbers}
        silence = config.snapshot_delay + 10 * config.snapshot_interval
        tie_requests = 0 if config.clairvoyant else TIE_REQUESTS
        self._balancer = Balancer(config.ranks, config.balance, silence, tie_requests)
        self._reporter = LoadReporter(
            self._ranks, self._balancer, config.snapshot_interval, config.snapshot_delay
        )
        self._events: list[tuple[float, int]] = []
        self._rank_of = np.full(len(trace), -1, np.int32)
        self._refused = np.zeros(len(trace), np.bool_)

    def run(self) -> SimulationRun:
        try:
            now = self._serve()
        finally:
            for group in self._groups:
                group.close()
        unfinished = int((np.isnan(self._recorder.finished) & ~self._refused).sum())
        if unfinished:
            raise StuckError(unfinished, now)
        return self._result(now)

    def _serve(self) -> float:
        """Handle events in order of time; the time of the last. At the same time, requests arrive first."""
        arrivals: list[float] = self._trace.arrival.tolist()
        arrived, now = 0, 0.0
        while self._events or arrived < len(arrivals):
            if arrived < len(arrivals) and (not self._events or arrivals[arrived] <= self._events[0][0]):
                now = arrivals[arrived]
                self._reporter.advance(now)
                self._arrive(arrived, now)
                arrived += 1
            else:
                now, group = heapq.heappop(self._events)
                self._reporter.advance(now)
                self._schedule(group, self._groups[group].advance(now))
        return now

    def _arrive(self, request: int, now: float) -> None:
        """Give a request to a rank, and wake the rank's group if it sleeps."""
        if self._config.clairvoyant:
            self._reporter.report_now(now)
        number = self._balancer.route(int(self._trace.prompt[request]), now)
        self._rank_of[request] = number
        if not self._ranks[number].add(request):
            self._refused[request] = True
            return
        self._recorder.arrived(request, now)
        group = self._group_of[number]
        if self._groups[group].asleep:
            self._groups[group].asleep = False
            self._schedule(group, now)

    def _schedule(self, group: int, when: float | None) -> None:
        if when is not None:
            heapq.heappush(self._events, (when, group))

    def _make_group(self, numbers: list[int]) -> Group:
        config = self._config
        ranks = [self._ranks[number] for number in numbers]
        planner = make_planner([rank.scheduler for rank in ranks], config.rule)
        asynchronous = config.scheduler.max_steps_in_flight > 1
        return Group(ranks, planner, config.curve, self._recorder, asynchronous)

    def _result(self, now: float) -> SimulationRun:
        reporter = self._reporter
        reporter.advance(now)
        shape = (len(reporter.weights), len(self._ranks))
        return SimulationRun(
            config=self._config,
            recorder=self._recorder,
            stats=tuple(rank.scheduler.stats() for rank in self._ranks.values()),
            counters=tuple(group.counters for group in self._groups),
            seconds=now,
            rank_of=self._rank_of,
            refused=self._refused,
            weights=np.array(reporter.weights, np.float64),
            held_tokens=np.array(reporter.held_tokens, np.int64).reshape(shape),
            used_blocks=np.array(reporter.used_blocks, np.int64).reshape(shape),
        )
