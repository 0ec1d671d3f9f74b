"""Speculation planning for use alone: how many drafts of a step to verify, and whose.

A draft's *rate* is the probability that it and the drafts before it are accepted, the running product of its
sequence's confidences. Rejection sampling stays exact only if the decision to verify a draft depends on nothing drawn
after that draft (decoding spec, 10.6). So the *total* comes from the rates of one round earlier
(`DraftBudget.choose_total`) and the *split* from the rates of the drafts themselves (`distribute_drafts`):

    budget = DraftBudget(curve)
    total = budget.choose_total(rates_of_last_round, base_rows=n, num_seqs=n, max_drafts=5 * n)
    taken = distribute_drafts(accumulate_rates(confidences, starts), starts, min(total, len(confidences)))
"""

import numpy as np
from numpy.typing import NDArray

from di_scheduler import _native
from di_scheduler._checks import INT32_MAX, check_array, check_int
from di_scheduler.cost_curve import CostCurve


class SpeculationError(ValueError):
    """An argument of speculation planning that is out of range; the message names it. Nothing is changed."""


def accumulate_rates(confidences: NDArray[np.float32], starts: NDArray[np.int32]) -> NDArray[np.float32]:
    """Rates of drafts, float32 [D]: running products of each sequence's confidences, in float32 from the left.

    `confidences` is float32 [D]; sequence i of S owns `starts[i] .. starts[i+1]-1`, `starts` int32 [S+1]. They come
    from a model, so a bad one costs its drafts and nothing else: NaN and values below 0 count as 0, values above 1 as
    1. The result is in [0, 1] and never increases within a sequence.

    Raises `SpeculationError` for `starts` that do not delimit the drafts, `TypeError` for another dtype or shape.
    """
    check_array("confidences", confidences, np.float32)
    check_array("starts", starts, np.int32)
    rates = np.empty_like(confidences)
    _native.accumulate_rates(confidences, starts, rates)
    return rates


def distribute_drafts(rates: NDArray[np.float32], starts: NDArray[np.int32], total: int) -> NDArray[np.int32]:
    """How many drafts of each sequence are among the `total` best, int32 [S]; they are the sequence's first ones.

    `rates` is float32 [D], in [0, 1] and never increasing within a sequence; sequence i owns `starts[i] ..
    starts[i+1]-1`. Ties go to the lower index (scheduler spec, 12.3 and 13.2). O(D) on average.

    Raises `SpeculationError` for rates or starts that break these rules and for a total above D, `ConfigError` for a
    total that is no count, `TypeError` for another dtype or shape.
    """
    check_array("rates", rates, np.float32)
    check_array("starts", starts, np.int32)
    check_int("total", total, 0)
    taken = np.empty(max(len(starts) - 1, 0), np.int32)
    _native.distribute_drafts(rates, starts, total, taken)
    return taken


class DraftBudget:
    """Chooses how many drafts to verify from a cost curve, and corrects the curve by what steps really take."""

    def __init__(self, curve: CostCurve) -> None:
        self._calibration = _native.Calibration(
            sizes=curve.sizes, milliseconds=curve.milliseconds, stepped=curve.stepped
        )

    def choose_total(
        self, rates: NDArray[np.float32], *, base_rows: int, num_seqs: int, max_drafts: int = INT32_MAX
    ) -> int:
        """The number of drafts, at most `max_drafts`, with the most expected tokens per time; the smallest of equals.

        `rates` (float32 [D], any order, each in [0, 1]) must be those of the round before the drafts. `base_rows` is
        what the step computes anyway, `num_seqs` of them decode rows that yield one token for sure each. Numbers that
        make the step larger than a stepped curve allows do not take part. Scheduler spec, 12.3; O(D log D).

        Raises `SpeculationError` for a rate outside [0, 1] and for `base_rows` below `num_seqs` or, if there is
        anything to choose, beyond the curve; `ConfigError` for something that is no count.
        """
        check_array("rates", rates, np.float32)
        check_int("base_rows", base_rows, 0)
        check_int("num_seqs", num_seqs, 0)
        check_int("max_drafts", max_drafts, 0)
        return self._calibration.choose_draft_total(
            base_rows=base_rows, num_seqs=num_seqs, max_drafts=max_drafts, rates=rates
        )

    def observe(self, *, num_seqs: int, rows: int, forward_ms: float, sampler_ms: float) -> bool:
        """Learn from a finished step of `rows` rows and `num_seqs` sequences (scheduler spec, 12.4).

        False, and nothing learnt, if a time is negative or not finite or a stepped curve has no size for the step.
        Raises `ConfigError` unless both counts are at least 1.
        """
        check_int("num_seqs", num_seqs, 1)
        check_int("rows", rows, 1)
        return self._calibration.observe(
            num_seqs=num_seqs, rows=rows, forward_ms=forward_ms, sampler_ms=sampler_ms
        )

    def milliseconds(self, rows: int, num_seqs: int) -> float:
        """What a step is expected to take now: curve, calibrated slope and sampler.

        Raises `SpeculationError` unless the curve allows `rows`, `ConfigError` for something that is no count.
        """
        check_int("rows", rows, 1)
        check_int("num_seqs", num_seqs, 0)
        return self._calibration.milliseconds(rows, num_seqs)

    @property
    def native(self) -> _native.Calibration:
        """What `Scheduler.set_step_cost` copies the cost in force from."""
        return self._calibration

    @property
    def slope_ms(self) -> float:
        """Milliseconds a computed row that the forward pass takes beyond the curve, at least 0."""
        return self._calibration.slope
