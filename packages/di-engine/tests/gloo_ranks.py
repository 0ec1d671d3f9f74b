"""One rank of a data-parallel group as a process: ``gloo_ranks.py RANK SIZE DIRECTORY STEPS``.

Goes through all scenarios of ``test_gloo_vote.py`` and leaves what it saw in ``DIRECTORY/<rank>-<scenario>.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from di_engine.gloo_vote import GlooVote
from di_scheduler import Scheduler, SchedulerConfig, SequenceLimits
from di_scheduler.lockstep import GroupStopped, LockstepPlanner, PlannedStep
from di_scheduler.voting import VoteError

DEADLINE_S = 3.0


def replay(rank: int, vote: GlooVote, steps: int) -> dict[str, object]:
    """R59: arrivals, idle spells, aborts and an early end at random; steps go on until all ranks have stopped."""
    chance = random.Random(rank)
    scheduler = Scheduler(
        SchedulerConfig(
            num_blocks=20,
            num_slots=9,
            block_size=4,
            max_num_seqs=8,
            max_num_batched_tokens=16,
            max_model_len=64,
        )
    )
    planner = LockstepPlanner(scheduler, vote, idle_interval_s=5e-4)
    taken, next_id, kinds = 0, 0, hashlib.sha256()
    finishes_at = steps * (vote.size - rank) // vote.size
    idle_until = 0
    while True:
        if taken < finishes_at and taken >= idle_until and chance.random() < 0.2:
            prompt = np.arange(chance.randint(1, 40), dtype=np.int32)
            scheduler.add(next_id, prompt, SequenceLimits(max_tokens=chance.randint(1, 20)))
            next_id += 1
        if chance.random() < 0.01:
            idle_until = taken + chance.randint(10, 100)
        if chance.random() < 0.02 or taken == finishes_at:
            for seq_id in range(next_id):
                scheduler.abort(seq_id)
        if taken >= finishes_at:
            planner.request_stop()
        result = planner.plan()
        if isinstance(result, GroupStopped):
            break
        kinds.update(result.kind.name.encode() if isinstance(result, PlannedStep) else b"idle")
        if isinstance(result, PlannedStep) and result.plan.num_seqs:
            count = len(result.plan.sampling)
            scheduler.commit(np.full(count, 3, np.int32), np.ones(count, np.int32))
        taken += 1
    stats = planner.stats()
    return {
        "turns": taken,
        "kinds": kinds.hexdigest(),
        "votes": stats.votes,
        "prefill_steps": stats.prefill_steps,
        "decode_steps": stats.decode_steps,
        "idle_turns": stats.idle_turns,
        "empty_steps": stats.empty_steps,
        "used_blocks": scheduler.stats().used_blocks,
    }


def blamed(vote: GlooVote, values: list[int]) -> dict[str, object]:
    """Whom a vote names when it fails, in what time, and whether it stays failed."""
    started = time.monotonic()
    try:
        result = vote.minimum(values)
    except VoteError as error:
        seconds = time.monotonic() - started
        try:
            vote.minimum(values)
        except VoteError as again:
            same = str(again) == str(error)
        else:
            same = False
        return {
            "error": type(error).__name__,
            "ranks": error.ranks,
            "text": str(error),
            "seconds": seconds,
            "again": same,
        }
    return {"error": None, "result": result}


def agree(rank: int, vote: GlooVote) -> dict[str, object]:
    """Minima, also of the largest numbers, and what a vote refuses."""
    results = [
        vote.minimum([rank, -rank, (rank + i) % 3, 2**63 - 1 - rank, -(2**63) + rank]) for i in range(50)
    ]
    refused = [refusal(vote, values) for values in ([0] * 33, [0, 2**63], [0, 1.5])]
    return {"results": results, "refused": refused, "empty": vote.minimum([])}


def refusal(vote: GlooVote, values: list[int]) -> str:
    """Why a vote refuses these values, each rank for itself."""
    try:
        vote.minimum(values)
    except ValueError as error:
        return str(error)
    return ""


def mismatch(rank: int, vote: GlooVote) -> dict[str, object]:
    return blamed(vote, [0] * (2 if rank == 1 else 1))


def late(rank: int, vote: GlooVote, latecomer: int) -> dict[str, object]:
    """One rank comes after the others have given up."""
    vote.minimum([0])
    if rank == latecomer:
        time.sleep(DEADLINE_S * 1.5)
    return blamed(vote, [rank])


def killed(rank: int, vote: GlooVote, victim: int) -> dict[str, object]:
    """One rank is gone without a word."""
    vote.minimum([0])
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    return blamed(vote, [rank])


def main(rank: int, size: int, directory: Path, steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory}/rendezvous",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    # A rank that is killed leaves the groups of the scenarios after it.
    survivors = list(range(size - 1))
    scenarios: list[tuple[str, list[int], float, Callable[[GlooVote], dict[str, object]]]] = [
        ("replay", list(range(size)), 60.0, lambda vote: replay(rank, vote, steps)),
        ("agree", list(range(size)), 60.0, lambda vote: agree(rank, vote)),
        ("mismatch", list(range(size)), 60.0, lambda vote: mismatch(rank, vote)),
        ("late", list(range(size)), DEADLINE_S, lambda vote: late(rank, vote, latecomer=1)),
        ("late-leader", list(range(size)), DEADLINE_S, lambda vote: late(rank, vote, latecomer=0)),
        ("killed", list(range(size)), 60.0, lambda vote: killed(rank, vote, victim=size - 1)),
        ("killed-leader", survivors, 60.0, lambda vote: killed(rank, vote, victim=0)),
    ]
    groups = [[dist.new_group(ranks, backend="gloo") for _ in range(2)] for _, ranks, _, _ in scenarios]
    for (name, ranks, deadline_s, run), (votes, answers) in zip(scenarios, groups, strict=True):
        if rank not in ranks:
            continue
        GlooVote(votes, answers, deadline_s=60.0).minimum([])  # all begin together
        report = run(GlooVote(votes, answers, deadline_s=deadline_s))
        (directory / f"{rank}-{name}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
