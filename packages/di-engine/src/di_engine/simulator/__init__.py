"""Discrete-event simulation: the real scheduler in virtual time, with a device that only costs time."""

from di_engine.simulator.balance import BalanceMode, Balancer, LoadSnapshot
from di_engine.simulator.curve import StepCurve, read_curve
from di_engine.simulator.errors import (
    NoRankError,
    PlotUnavailableError,
    SimulationConfigError,
    StuckError,
    TraceError,
)
from di_engine.simulator.report import Summary, Times, summarize
from di_engine.simulator.rules import StepRule
from di_engine.simulator.simulation import SimulationConfig, SimulationRun, simulate
from di_engine.simulator.synthetic import (
    FixedLengths,
    LogNormalLengths,
    SyntheticTrace,
    ZipfLengths,
    parse_lengths,
)
from di_engine.simulator.trace import Trace, TraceRow, make_trace, read_trace

__all__ = [
    "BalanceMode",
    "Balancer",
    "FixedLengths",
    "LoadSnapshot",
    "LogNormalLengths",
    "NoRankError",
    "PlotUnavailableError",
    "SimulationConfig",
    "SimulationConfigError",
    "SimulationRun",
    "StepCurve",
    "StepRule",
    "StuckError",
    "Summary",
    "SyntheticTrace",
    "Times",
    "Trace",
    "TraceError",
    "TraceRow",
    "ZipfLengths",
    "make_trace",
    "parse_lengths",
    "read_curve",
    "read_trace",
    "simulate",
    "summarize",
]
