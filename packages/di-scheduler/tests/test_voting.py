"""Votes of ranks that are threads."""

import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from di_scheduler import ConfigError
from di_scheduler.voting import InProcessVote, VoteError, VoteMismatchError, VoteTimeoutError


def test_the_minimum_of_all_ranks_on_all_ranks() -> None:
    votes = InProcessVote.group(3, deadline_s=10)
    assert [(vote.rank, vote.size) for vote in votes] == [(0, 3), (1, 3), (2, 3)]
    offers = [[[r, -r, (7 * r + i) % 5] for i in range(200)] for r in range(3)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda r: [votes[r].minimum(values) for values in offers[r]], range(3)))
    expected = [[0, -2, min((7 * r + i) % 5 for r in range(3))] for i in range(200)]
    assert found == [expected] * 3


def test_a_rank_alone_gets_its_own_values() -> None:
    vote = InProcessVote.alone()
    assert (vote.rank, vote.size) == (0, 1)
    assert vote.minimum((3, -1)) == [3, -1]


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**400, 1.5, 1.0, float("nan"), True, None, "1"])
def test_a_value_that_is_no_64_bit_integer_is_named_before_anybody_is_told(value: object) -> None:
    allowed = rf"values\[1\] must be an integer from {-(2**63)} to {2**63 - 1}, got "
    with pytest.raises(ConfigError, match=allowed):
        InProcessVote.alone().minimum([0, value])  # type: ignore[list-item]
    votes = InProcessVote.group(2, deadline_s=10)
    with pytest.raises(ConfigError, match=allowed):
        votes[0].minimum([0, value])  # type: ignore[list-item]
    with ThreadPoolExecutor(2) as pool:
        most = [np.int64(2**63 - 1), -(2**63)]
        assert list(pool.map(lambda vote: vote.minimum(most), votes)) == [[2**63 - 1, -(2**63)]] * 2


def test_missing_ranks_are_named_within_the_deadline() -> None:
    votes = InProcessVote.group(4, deadline_s=0.2)
    errors: dict[int, VoteTimeoutError] = {}

    def take_part(rank: int) -> None:
        with pytest.raises(VoteTimeoutError) as caught:
            votes[rank].minimum([1])
        errors[rank] = caught.value

    begin = time.monotonic()
    threads = [threading.Thread(target=take_part, args=(rank,)) for rank in (0, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0.2 <= time.monotonic() - begin < 5
    assert {rank: error.ranks for rank, error in errors.items()} == {0: (1, 3), 2: (1, 3)}
    assert "ranks 1, 3 of 4 did not vote within 0.2 s" in str(errors[0])
    assert errors[0] is not errors[2]
    with pytest.raises(VoteTimeoutError, match="ranks 1, 3"):
        votes[1].minimum([1])  # the late rank is told, at once


def test_different_questions_are_an_error_on_every_rank() -> None:
    votes = InProcessVote.group(2, deadline_s=10)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(votes[r].minimum, [0] * (r + 1)) for r in range(2)]
        for future in futures:
            with pytest.raises(VoteMismatchError, match="1 by rank 0, 2 by rank 1"):
                future.result()


@pytest.mark.parametrize(
    "error", [VoteTimeoutError([2, 1], 4, 0.5, "why"), VoteMismatchError("what", [0]), VoteError("x", [])]
)
def test_errors_survive_a_process_border(error: VoteError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.ranks) == (type(error), str(error), error.ranks)


@pytest.mark.parametrize("deadline", [0, -1.0, float("inf"), float("nan"), "1", True])
def test_a_deadline_is_a_positive_time(deadline: object) -> None:
    with pytest.raises(ConfigError, match="deadline_s must be"):
        InProcessVote.group(2, deadline_s=deadline)  # type: ignore[arg-type]


def test_a_group_has_ranks() -> None:
    with pytest.raises(ConfigError, match="size must be an integer from 1"):
        InProcessVote.group(0)
