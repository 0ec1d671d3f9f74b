"""How the ranks of a data-parallel group agree: element-wise minima of small vectors.

A minimum is enough for every question that a group has: "all?" is the minimum of 0 and 1, "any?" that of the negated
bits, a maximum that of the negated numbers.
"""

import copy
import math
import threading
from collections.abc import Iterable, Sequence
from typing import Protocol

from di_scheduler._checks import check_int
from di_scheduler.errors import ConfigError

DEFAULT_DEADLINE_S = 30.0


class Vote(Protocol):
    """A place at which the ranks of a group meet. One thread of each rank may use it."""

    @property
    def size(self) -> int:
        """Ranks of the group."""

    @property
    def rank(self) -> int:
        """This rank, from 0 to `size - 1`."""

    def minimum(self, values: Sequence[int]) -> list[int]:
        """The element-wise minimum over the ranks: the same list on all of them.

        Waits for every rank, at most as long as the vote's deadline. Every rank makes the same calls in the same order
        with vectors of the same length. Raises `ConfigError`, before anybody is told, unless all elements are integers
        of 64 bits (`check_values`). Raises `VoteTimeoutError` naming the ranks that did not vote, `VoteMismatchError`
        when lengths differ; after one of these the group is over: further calls raise it again.
        """


class VoteError(RuntimeError):
    """A vote that came to no result. `ranks` are those to blame, in order."""

    def __init__(self, message: str, ranks: Iterable[int]) -> None:
        self.ranks = tuple(sorted(ranks))
        self._message = message
        super().__init__(message, self.ranks)  # what the constructor takes, so that the error can be pickled

    def __str__(self) -> str:
        return self._message


class VoteTimeoutError(VoteError):
    """Ranks did not vote: they died, hang, or are later than the deadline allows."""

    def __init__(self, ranks: Iterable[int], size: int, deadline_s: float, reason: str = "") -> None:
        ranks = tuple(sorted(ranks))
        names = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} of {size}"
        text = f"{names} did not vote within {deadline_s:g} s"
        super().__init__(f"{text}: {reason}" if reason else text, ranks)
        self.deadline_s = deadline_s
        self.args = (ranks, size, deadline_s, reason)


class VoteMismatchError(VoteError):
    """Ranks voted on different questions: they are not in lockstep."""


def check_deadline(deadline_s: float) -> float:
    """Raise `ConfigError` unless `deadline_s` is a positive, finite number of seconds."""
    if isinstance(deadline_s, bool) or not isinstance(deadline_s, int | float):
        raise ConfigError(f"deadline_s must be a number of seconds, got {deadline_s!r}")
    if not 0 < deadline_s < math.inf:
        raise ConfigError(f"deadline_s must be positive and finite, got {deadline_s!r}")
    return float(deadline_s)


def check_values(values: Sequence[int]) -> list[int]:
    """The values of a vote as ints; raises `ConfigError` naming the first that is no 64-bit integer, or a bool."""
    return [check_int(f"values[{i}]", value, -(2**63), 2**63 - 1) for i, value in enumerate(values)]


class InProcessVote:
    """One rank of a group whose ranks are threads of this process; made by `group` or `alone`."""

    def __init__(self, table: "_Table", rank: int) -> None:
        self._table = table
        self._rank = rank

    @classmethod
    def group(cls, size: int, *, deadline_s: float = DEFAULT_DEADLINE_S) -> tuple["InProcessVote", ...]:
        """The votes of all ranks of a new group, in order of ranks."""
        check_int("size", size, 1)
        table = _Table(size, check_deadline(deadline_s))
        return tuple(cls(table, rank) for rank in range(size))

    @classmethod
    def alone(cls) -> "InProcessVote":
        """The vote of a group of one, which never waits."""
        return cls.group(1)[0]

    @property
    def size(self) -> int:
        return self._table.size

    @property
    def rank(self) -> int:
        return self._rank

    def minimum(self, values: Sequence[int]) -> list[int]:
        """See `Vote.minimum`."""
        checked = check_values(values)
        if self._table.size == 1:
            return checked
        return self._table.vote(self._rank, checked)


class _Table:
    """Where the votes of one round lie until the last rank has put down its own."""

    def __init__(self, size: int, deadline_s: float) -> None:
        self.size = size
        self._deadline_s = deadline_s
        self._changed = threading.Condition()
        self._round = 0
        self._votes: dict[int, list[int]] = {}
        self._result: list[int] = []
        self._failure: VoteError | None = None

    def vote(self, rank: int, values: list[int]) -> list[int]:
        with self._changed:
            self._raise_failure()
            self._votes[rank] = values
            self._check_lengths()
            if len(self._votes) == self.size:
                self._close_round()
            else:
                self._wait_for_round(self._round)
            # The next round cannot end, and replace this result, before this rank has voted again.
            return list(self._result)

    def _close_round(self) -> None:
        self._result = [min(column) for column in zip(*self._votes.values(), strict=True)]
        self._votes = {}
        self._round += 1
        self._changed.notify_all()

    def _wait_for_round(self, number: int) -> None:
        self._changed.wait_for(lambda: self._round != number or self._failure, self._deadline_s)
        if self._round == number:
            self._raise_failure()
            missing = set(range(self.size)) - set(self._votes)
            self._fail(VoteTimeoutError(missing, self.size, self._deadline_s))

    def _check_lengths(self) -> None:
        lengths = {rank: len(votes) for rank, votes in sorted(self._votes.items())}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{length} by rank {rank}" for rank, length in lengths.items())
            self._fail(
                VoteMismatchError(f"votes must hold as many values on every rank, got {told}", lengths)
            )

    def _fail(self, failure: VoteError) -> None:
        self._failure = failure
        self._changed.notify_all()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise copy.copy(self._failure)  # every thread its own, with its own traceback
