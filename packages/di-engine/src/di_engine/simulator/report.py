"""The figures of a simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from di_engine.simulator.simulation import SimulationRun


@dataclass(frozen=True, slots=True)
class Times:
    """A distribution of times in seconds. A percentile is the least value that so many percent do not exceed."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    worst: float


@dataclass(frozen=True, slots=True)
class Summary:
    """What a simulation amounts to. Times are virtual, in seconds; None where nothing could be measured."""

    requests: int
    finished: int
    refused: int
    seconds: float
    """From the first arrival to the last event."""
    prompt_tokens: int
    """Of the finished requests."""
    output_tokens: int
    output_tokens_per_second: float
    requests_per_second: float
    time_to_first_token: Times | None
    """From arrival to the commit of the first token."""
    time_between_tokens: Times | None
    """Between commits that bring tokens to a request; with drafts, one commit may bring several."""
    time_to_finish: Times | None
    """From arrival to the commit of the last token."""
    mean_wait: float | None
    """From arrival to the plan that holds the first rows."""
    worst_wait: float | None
    fairness: float | None
    """Mean of Jain's index over the windows in which at least two users competed
    (:class:`~di_engine.simulator.record.FairnessMeter`); 1 is best."""
    fairness_windows: int
    steps: int
    empty_steps: int
    """Steps computed although no rank had a row."""
    rows: int
    """Rows computed: prompts, generated tokens, refused drafts, and what preemption repeats."""
    device_use: float
    """Share of the time in which a group computes, mean over groups."""
    preemptions: int
    drafts_planned: int
    drafts_accepted: int
    kv_use_mean: float
    """Share of the usable blocks in use, sampled at the load reports, mean over time and ranks."""
    kv_use_peak: float
    imbalance: float | None
    """Tokens of the fullest rank over the mean of the ranks, mean over the samples with tokens; 1 is best."""


def summarize(run: SimulationRun) -> Summary:
    """The figures of a run."""
    recorder, trace = run.recorder, run.recorder.trace
    finished = ~np.isnan(recorder.finished)
    count, stats = int(finished.sum()), run.stats
    seconds = run.seconds - float(trace.arrival[0]) if len(trace) else 0.0
    output_tokens = int(recorder.tokens.sum())
    waits = sum(one.num_first_scheduled for one in stats)
    use, usable = run.used_blocks, run.config.scheduler.num_blocks - 1
    indices = recorder.fairness.indices if recorder.fairness is not None else []
    return Summary(
        requests=len(trace),
        finished=count,
        refused=int(run.refused.sum()),
        seconds=seconds,
        prompt_tokens=int(trace.prompt[finished].sum()),
        output_tokens=output_tokens,
        output_tokens_per_second=output_tokens / seconds if seconds else 0.0,
        requests_per_second=count / seconds if seconds else 0.0,
        time_to_first_token=distribution(_known(recorder.first_token - trace.arrival)),
        time_between_tokens=distribution(recorder.gaps.values, recorder.gaps.weights),
        time_to_finish=distribution(_known(recorder.finished - trace.arrival)),
        mean_wait=sum(one.wait_sum for one in stats) / waits if waits else None,
        worst_wait=max(one.wait_max for one in stats) if waits else None,
        fairness=float(np.mean(indices)) if indices else None,
        fairness_windows=len(indices),
        steps=sum(counter.steps for counter in run.counters),
        empty_steps=sum(counter.empty_steps for counter in run.counters),
        rows=recorder.rows,
        device_use=sum(c.busy_seconds for c in run.counters) / (seconds * len(run.counters))
        if seconds
        else 0.0,
        preemptions=sum(one.preemptions for one in stats),
        drafts_planned=sum(one.drafts_planned for one in stats),
        drafts_accepted=sum(one.drafts_accepted for one in stats),
        kv_use_mean=float(np.average(use.mean(axis=1), weights=run.weights)) / usable,
        kv_use_peak=float(use.max()) / usable,
        imbalance=imbalance(run),
    )


def imbalance(run: SimulationRun) -> float | None:
    """Tokens of the fullest rank over the mean of the ranks that report, mean over time; None for one rank, or when
    never a sample found a token. Samples weigh as long as they stand for, and by their tokens: a rank that is the only
    one with work for a moment, when there is hardly any, says nothing."""
    held = run.held_tokens
    total = float((held.sum(axis=1) * run.weights).sum())
    if held.shape[1] < 2 or not total:
        return None
    fullest = float((held.max(axis=1) * run.weights).sum())
    return len(held[0]) * fullest / total


def distribution(values: ArrayLike, weights: ArrayLike | None = None) -> Times | None:
    """Of values that were seen ``weights`` times each (default once); None without values."""
    seen = np.asarray(values, np.float64)
    if not len(seen):
        return None
    counts = np.ones(len(seen), np.int64) if weights is None else np.asarray(weights, np.int64)
    order = np.argsort(seen, kind="stable")
    ordered, cumulative = seen[order], np.cumsum(counts[order])
    total = int(cumulative[-1])

    def percentile(share: int) -> float:
        rank = math.ceil(share * total / 100)
        return float(ordered[np.searchsorted(cumulative, rank)])

    mean = float((seen * counts).sum()) / total
    return Times(total, mean, percentile(50), percentile(90), percentile(99), float(ordered[-1]))


def _known(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> ArrayLike:
    return values[~np.isnan(values)]
