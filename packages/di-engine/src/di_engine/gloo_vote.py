"""Votes of data-parallel ranks that are processes, over gloo groups."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from di_scheduler.voting import (
    DEFAULT_DEADLINE_S,
    VoteError,
    VoteMismatchError,
    VoteTimeoutError,
    check_deadline,
    check_values,
)

MAX_VALUES = 32
"""Values of one vote."""

_STATUS, _COUNT, _HEADER = 0, 1, 2
_OK, _MISSING, _MISMATCH = 0, 1, 2
_LEADER = 0
_TAG = 0
_LAST_WORDS_S = 1.0
"""How long to listen to a rank that has closed one of its two connections."""


class GlooVote:
    """:class:`di_scheduler.voting.Vote` over two process groups of the gloo backend, used for nothing else.

    Rank 0 takes the votes and answers with the result, or with the names of those who did not vote. So all ranks hear
    the same, and with two messages a rank it is several times quicker on a busy host than gloo's all-reduce. A rank
    that ends is noticed when its connections close; one that hangs or is slow, by the deadline. Made for the ranks of
    one host or a few: rank 0's work grows with their number.

    Args:
        votes, answers: groups of the same ranks in the same order, this process among them. Two, because gloo closes
            every connection of a group once a receive has timed out: rank 0 can still answer when votes are missing.
            The caller makes and destroys them.
        deadline_s: the longest that one vote may take. Rank 0 waits half of it for the others, so that its answer
            reaches them in time: a rank is late when it votes half the deadline after rank 0. Before the first vote,
            the time counts from the making of this object.

    Raises:
        ConfigError: ``deadline_s`` is not positive and finite.
        ValueError: the groups are one, of different ranks, of another backend, or without this process.
    """

    def __init__(
        self,
        votes: dist.ProcessGroup,
        answers: dist.ProcessGroup,
        *,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> None:
        self._deadline_s = check_deadline(deadline_s)
        _check_groups(votes, answers)
        self._votes = votes
        self._answers = answers
        self._rank = dist.get_rank(votes)
        self._size = dist.get_world_size(votes)
        length = _HEADER + max(MAX_VALUES, self._size)
        self._sent = torch.zeros(length, dtype=torch.int64)
        # Kept as long as this object: a receive that was given up may still write.
        self._received = torch.zeros(self._size, length, dtype=torch.int64)
        self._sending: dict[int, dist.Work] = {}
        self._free_since = time.monotonic()
        self._failure: VoteError | None = None

    @property
    def size(self) -> int:
        return self._size

    @property
    def rank(self) -> int:
        return self._rank

    def minimum(self, values: Sequence[int]) -> list[int]:
        """See :meth:`di_scheduler.voting.Vote.minimum`.

        Raises:
            ConfigError: a value is no integer of 64 bits. Nothing was sent, and the group goes on.
            ValueError: more than ``MAX_VALUES`` values, likewise.
        """
        if len(values) > MAX_VALUES:
            raise ValueError(f"values must be at most {MAX_VALUES}, got {len(values)}")
        checked = check_values(values)
        if self._failure is not None:
            raise copy.copy(self._failure)
        if self._size == 1:
            return checked
        started = time.monotonic()
        try:
            result = self._lead(checked, started) if self._rank == _LEADER else self._follow(checked, started)
        except VoteError as failure:
            self._failure = failure
            raise
        self._free_since = time.monotonic()
        return result

    def _lead(self, values: Sequence[int], started: float) -> list[int]:
        followers = range(1, self._size)
        limit = started + self._deadline_s / 2
        missing = self._receive(self._votes, followers, limit)
        if missing:
            self._answer(_MISSING, [int(rank in missing) for rank in range(self._size)], started, missing)
            raise self._blame(missing, started, limit, self._deadline_s)
        offers = self._received[1:].tolist()
        others = [rank for rank, offer in enumerate(offers, start=1) if offer[_COUNT] != len(values)]
        if others:
            self._answer(_MISMATCH, [int(rank in others) for rank in range(self._size)], started)
            raise _mismatch(others)
        columns = zip(values, *(offer[_HEADER : _HEADER + len(values)] for offer in offers), strict=True)
        result = [min(column) for column in columns]
        unreachable = self._answer(_OK, result, started)
        if unreachable:
            raise self._blame(unreachable, started, limit, self._deadline_s)
        return result

    def _answer(
        self, status: int, values: Sequence[int], started: float, missing: Iterable[int] = ()
    ) -> set[int]:
        """Send to all followers and wait until those have it that are not missing; the ranks that have not."""
        followers = set(range(1, self._size))
        # For a missing rank, which may yet come, the message stays ready as long as this object.
        self._sending = self._send(self._answers, followers, status, values)
        present = {rank: work for rank, work in self._sending.items() if rank not in missing}
        return followers - set(present) | _finish(present, started + self._deadline_s)

    def _follow(self, values: Sequence[int], started: float) -> list[int]:
        limit = started + self._deadline_s
        self._sending = self._send(self._votes, [_LEADER], _OK, values)
        # Even when rank 0 takes no more votes, it may have an answer that says why.
        patience = limit if self._sending else min(limit, started + _LAST_WORDS_S)
        if self._receive(self._answers, [_LEADER], patience):
            raise self._blame([_LEADER], started, limit, self._deadline_s / 2)
        status, count, *answer = self._received[_LEADER].tolist()
        named = [rank for rank, blamed in enumerate(answer[:count]) if blamed]
        if status == _MISSING:
            raise VoteTimeoutError(named, self._size, self._deadline_s)
        if status == _MISMATCH:
            raise _mismatch(named)
        if _finish(self._sending, limit):
            raise self._blame([_LEADER], started, limit, self._deadline_s / 2)
        return list(answer[:count])

    def _receive(self, group: dist.ProcessGroup, ranks: Iterable[int], limit: float) -> set[int]:
        """Receive from each; the ranks from which nothing came."""
        receiving = {}
        missing = set()
        for rank in ranks:
            try:
                receiving[rank] = group.recv([self._received[rank]], rank, _TAG)
            except RuntimeError:  # its connection is closed
                missing.add(rank)
        return missing | _finish(receiving, limit)

    def _send(
        self, group: dist.ProcessGroup, ranks: Iterable[int], status: int, values: Sequence[int]
    ) -> dict[int, dist.Work]:
        """Begin to send to each rank that can be reached."""
        self._sent[:_HEADER] = torch.tensor([status, len(values)])
        self._sent[_HEADER : _HEADER + len(values)] = torch.tensor(values, dtype=torch.int64)
        sending = {}
        for rank in ranks:
            try:
                sending[rank] = group.send([self._sent], rank, _TAG)
            except RuntimeError:  # its connection is closed
                continue
        return sending

    def _blame(
        self, silent: Iterable[int], started: float, limit: float, their_patience_s: float
    ) -> VoteTimeoutError:
        """The error for ranks that were silent until `limit`, or whose connections are closed.

        Who gives up on a rank closes the connection to it. So a rank that finds connections closed, having come later
        than the others wait, is the missing one itself.
        """
        absence_s = started - self._free_since
        if time.monotonic() < limit and absence_s >= their_patience_s:
            reason = f"it came after {absence_s:.3g} s, when others had ended or given it up"
            return VoteTimeoutError([self._rank], self._size, self._deadline_s, reason)
        return VoteTimeoutError(silent, self._size, self._deadline_s)


def _finish(works: Mapping[int, dist.Work], limit: float) -> set[int]:
    """Wait for what was begun with each rank; the ranks with which it failed."""
    failed = set()
    for rank, work in works.items():
        left = max(limit - time.monotonic(), 1e-3)  # gloo takes 0 for no limit
        try:
            work.wait(timedelta(seconds=left))
        except RuntimeError:  # closed, or too late: gloo tells both by words only
            failed.add(rank)
    return failed


def _mismatch(ranks: Sequence[int]) -> VoteMismatchError:
    names = ", ".join(map(str, ranks))
    return VoteMismatchError(
        f"votes must hold as many values as that of rank 0; they do not on {names}", ranks
    )


def _check_groups(votes: dist.ProcessGroup, answers: dist.ProcessGroup) -> None:
    if votes is answers:
        raise ValueError("votes and answers must be two groups, got one")
    for name, group in (("votes", votes), ("answers", answers)):
        if dist.get_rank(group) < 0:
            raise ValueError(f"{name} must be a group that this process belongs to, got {group!r}")
        if (backend := dist.get_backend(group)) != "gloo":
            raise ValueError(f"{name} must be a group of the gloo backend, got {backend!r}")
    ranks = [dist.get_process_group_ranks(group) for group in (votes, answers)]
    if ranks[0] != ranks[1]:
        raise ValueError(f"votes and answers must have the same ranks, got {ranks[0]} and {ranks[1]}")
