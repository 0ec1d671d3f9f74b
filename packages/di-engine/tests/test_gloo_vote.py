"""Votes over gloo between processes: field report R59, and whom a vote names when ranks are late or gone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from di_engine.gloo_vote import GlooVote
from di_scheduler import ConfigError

pytestmark = pytest.mark.timeout(900)
SIZE = 3
SCRIPT = Path(__file__).with_name("gloo_ranks.py")

Reports = dict[str, dict[int, dict[str, Any]]]
"""By scenario and rank."""


@pytest.fixture(scope="module")
def steps(request: pytest.FixtureRequest) -> int:
    nightly = request.config.getoption("--hypothesis-profile", default=None) == "nightly"
    return 10_000 if nightly else 2_000


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory, steps: int) -> Reports:
    """Starts the ranks once for all scenarios: what takes time is importing torch."""
    directory = tmp_path_factory.mktemp("ranks")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(SIZE), str(directory), str(steps)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(SIZE)
    ]
    try:
        outputs = [rank.communicate(timeout=800)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    codes = [rank.returncode for rank in ranks]
    # Rank 0 and the last one are killed on purpose.
    assert codes == [-signal.SIGKILL, *[0] * (SIZE - 2), -signal.SIGKILL], "\n".join(outputs)
    found: Reports = {}
    for file in sorted(directory.glob("*-*.json")):
        rank, scenario = file.stem.split("-", 1)
        found.setdefault(scenario, {})[int(rank)] = json.loads(file.read_text())
    return found


def test_ranks_idle_finished_or_aborted_at_random_stay_in_step(reports: Reports, steps: int) -> None:
    """R59."""
    ranks = reports["replay"]
    assert sorted(ranks) == list(range(SIZE))
    for name in ("turns", "kinds", "votes", "prefill_steps", "decode_steps", "idle_turns"):
        assert len({report[name] for report in ranks.values()}) == 1, name
    assert ranks[0]["turns"] == steps  # rank 0 finishes last; the others take part until then
    assert min(ranks[0][name] for name in ("prefill_steps", "decode_steps")) > steps // 20
    assert all(report["empty_steps"] > 0 for report in ranks.values())
    assert all(report["used_blocks"] == 0 for report in ranks.values())


def test_the_minimum_of_all_ranks_on_all_ranks(reports: Reports) -> None:
    expected = [
        [0, 1 - SIZE, min((rank + i) % 3 for rank in range(SIZE)), 2**63 - SIZE, -(2**63)] for i in range(50)
    ]
    assert [report["results"] for _, report in sorted(reports["agree"].items())] == [expected] * SIZE
    allowed = f"values[1] must be an integer from {-(2**63)} to {2**63 - 1}, got"
    refused = ["values must be at most 32, got 33", f"{allowed} {2**63}", f"{allowed} 1.5"]
    assert [report["refused"] for report in reports["agree"].values()] == [refused] * SIZE
    assert [report["empty"] for report in reports["agree"].values()] == [[]] * SIZE


def test_different_questions_are_an_error_on_every_rank(reports: Reports) -> None:
    for report in reports["mismatch"].values():
        assert (report["error"], report["ranks"], report["again"]) == ("VoteMismatchError", [1], True)


@pytest.mark.parametrize(("scenario", "latecomer"), [("late", 1), ("late-leader", 0)])
def test_a_slow_rank_is_named_within_the_deadline(reports: Reports, scenario: str, latecomer: int) -> None:
    """By the others, and by itself when it comes."""
    ranks = reports[scenario]
    assert sorted(ranks) == list(range(SIZE))
    for rank, report in ranks.items():
        assert (report["error"], report["ranks"]) == ("VoteTimeoutError", [latecomer])
        assert f"rank {latecomer} of {SIZE} did not vote within 3 s" in report["text"]
        assert report["again"]
        assert report["seconds"] < 3.0 + 1.5, rank  # the deadline, and time to be scheduled on a busy machine


@pytest.mark.parametrize(("scenario", "victim"), [("killed", SIZE - 1), ("killed-leader", 0)])
def test_a_dead_rank_is_named_when_its_connection_closes(
    reports: Reports, scenario: str, victim: int
) -> None:
    """Long before the deadline of a minute."""
    ranks = reports[scenario]
    assert victim not in ranks
    assert len(ranks) == (SIZE - 1 if scenario == "killed" else SIZE - 2)
    for report in ranks.values():
        assert (report["error"], report["ranks"], report["again"]) == ("VoteTimeoutError", [victim], True)
        assert report["seconds"] < 20


Groups = tuple[dist.ProcessGroup, dist.ProcessGroup]


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    """Of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        yield dist.new_group(backend="gloo"), dist.new_group(backend="gloo")
    finally:
        dist.destroy_process_group()


def test_a_group_of_one_does_not_communicate(groups: Groups) -> None:
    vote = GlooVote(*groups)
    assert (vote.rank, vote.size) == (0, 1)
    assert vote.minimum((3, -1)) == [3, -1]


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**400, 1.5, 1.0, float("nan"), True, None, "1"])
def test_a_value_that_is_no_64_bit_integer_is_named(groups: Groups, value: object) -> None:
    with pytest.raises(
        ConfigError, match=rf"values\[1\] must be an integer from {-(2**63)} to {2**63 - 1}, got "
    ):
        GlooVote(*groups).minimum([0, value])


def test_a_deadline_is_a_positive_time(groups: Groups) -> None:
    with pytest.raises(ConfigError, match="deadline_s must be positive and finite, got 0"):
        GlooVote(*groups, deadline_s=0)


def test_votes_and_answers_need_a_group_each(groups: Groups) -> None:
    with pytest.raises(ValueError, match="votes and answers must be two groups, got one"):
        GlooVote(groups[0], groups[0])
