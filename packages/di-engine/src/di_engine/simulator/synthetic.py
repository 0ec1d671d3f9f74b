"""Synthetic traces: Poisson or bursty arrivals, lengths from a distribution, users and classes by their shares."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from di_engine.simulator._checks import check_integer, check_number, is_number
from di_engine.simulator.errors import SimulationConfigError
from di_engine.simulator.limits import (
    LEAST_RATE,
    LEAST_SHAPE,
    MOST_EXPONENT,
    MOST_RATE,
    MOST_REQUESTS,
    MOST_SEED,
    MOST_SHARE,
    MOST_SIGMA,
    MOST_TOKENS,
    MOST_USERS,
)
from di_engine.simulator.trace import Trace


class Lengths(Protocol):
    """A distribution of lengths in tokens."""

    def draw(self, random: np.random.Generator, count: int) -> NDArray[np.int32]:
        """``count`` lengths, each at least 1."""


@dataclass(frozen=True, slots=True)
class FixedLengths:
    """Every length is ``tokens``."""

    tokens: int

    def __post_init__(self) -> None:
        check_integer("tokens", self.tokens, 1, MOST_TOKENS)

    def draw(self, random: np.random.Generator, count: int) -> NDArray[np.int32]:
        return np.full(count, self.tokens, np.int32)


@dataclass(frozen=True, slots=True)
class ZipfLengths:
    """Length k, from 1 to ``most``, with a chance in proportion to ``k ** -exponent``: many short, few very long."""

    exponent: float
    most: int

    def __post_init__(self) -> None:
        check_number("exponent", self.exponent, LEAST_SHAPE, MOST_EXPONENT)
        check_integer("most", self.most, 1, MOST_TOKENS)

    def draw(self, random: np.random.Generator, count: int) -> NDArray[np.int32]:
        chances = np.arange(1, self.most + 1, dtype=np.float64) ** -self.exponent
        cumulative = np.cumsum(chances)
        drawn = np.searchsorted(cumulative, random.random(count) * cumulative[-1], side="right") + 1
        lengths: NDArray[np.int32] = np.minimum(drawn, self.most).astype(np.int32)
        return lengths


@dataclass(frozen=True, slots=True)
class LogNormalLengths:
    """Lengths whose logarithms are normal around that of ``median``, cut off at 1 and ``most``."""

    median: float
    sigma: float
    most: int

    def __post_init__(self) -> None:
        check_number("median", self.median, 1, MOST_TOKENS)
        check_number("sigma", self.sigma, LEAST_SHAPE, MOST_SIGMA)
        check_integer("most", self.most, 1, MOST_TOKENS)

    def draw(self, random: np.random.Generator, count: int) -> NDArray[np.int32]:
        drawn = np.rint(random.lognormal(math.log(self.median), self.sigma, count))
        return np.clip(drawn, 1, self.most).astype(np.int32)


@dataclass(frozen=True, slots=True)
class SyntheticTrace:
    """What a synthetic trace is made of. Raises :class:`SimulationConfigError` naming the first field out of range."""

    requests: int = 2000
    """Requests, at least 0."""
    rate: float = 10.0
    """Requests a second, on average."""
    burst: float = 1.0
    """Requests that arrive at one instant, on average, at least 1: bursts have geometric sizes and exponential gaps.
    1 gives Poisson arrivals."""
    prompt: Lengths = LogNormalLengths(512, 1.0, 8192)
    output: Lengths = LogNormalLengths(128, 0.8, 2048)
    users: int = 1
    """Users who send the requests, in equal shares."""
    classes: tuple[float, ...] = (1.0,)
    """Shares of the requests with priority 0, 1, ...; only their proportions count."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_integer("requests", self.requests, 0, MOST_REQUESTS)
        check_number("rate", self.rate, LEAST_RATE, MOST_RATE)
        check_number("burst", self.burst, 1, MOST_REQUESTS)
        check_integer("users", self.users, 1, MOST_USERS)
        shares_fit = all(is_number(share) and 0 <= share <= MOST_SHARE for share in self.classes)
        if not self.classes or not shares_fit or sum(self.classes) <= 0:
            allowed = f"shares from 0 to {MOST_SHARE:.12g}, some above 0"
            raise SimulationConfigError("classes", self.classes, allowed)
        check_integer("seed", self.seed, 0, MOST_SEED)

    def generate(self) -> Trace:
        """The trace. The same fields give the same one; arrivals, lengths, users and classes are drawn independently,
        so changing one leaves the others as they are."""
        streams = [np.random.default_rng(seed) for seed in np.random.SeedSequence(self.seed).spawn(5)]
        shares = np.asarray(self.classes, np.float64) / sum(self.classes)
        return Trace(
            self._arrivals(streams[0]),
            self.prompt.draw(streams[1], self.requests),
            self.output.draw(streams[2], self.requests),
            streams[3].choice(len(shares), self.requests, p=shares).astype(np.int32),
            streams[4].integers(0, self.users, self.requests, dtype=np.int32),
        )

    def _arrivals(self, random: np.random.Generator) -> NDArray[np.float64]:
        """Burst by burst; a burst is an instant with a geometric number of requests."""
        gaps = random.exponential(self.burst / self.rate, self.requests)
        sizes = random.geometric(1.0 / self.burst, self.requests)
        burst_of = np.searchsorted(np.cumsum(sizes), np.arange(self.requests), side="right")
        return np.cumsum(gaps)[burst_of]


def parse_lengths(text: str) -> Lengths:
    """A distribution by its text: ``128``, ``zipf:EXPONENT:MOST`` or ``lognormal:MEDIAN:SIGMA:MOST``.

    Raises :class:`SimulationConfigError`.
    """
    kind, *numbers = text.split(":")
    try:
        match kind, numbers:
            case "zipf", [exponent, most]:
                return ZipfLengths(float(exponent), int(most))
            case "lognormal", [median, sigma, most]:
                return LogNormalLengths(float(median), float(sigma), int(most))
            case tokens, []:
                return FixedLengths(int(tokens))
    except SimulationConfigError:
        raise
    except ValueError:
        pass  # a number that is none: told below
    raise SimulationConfigError("lengths", text, "N, zipf:EXPONENT:MOST or lognormal:MEDIAN:SIGMA:MOST")
