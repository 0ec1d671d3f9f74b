"""Results of a step that cannot be its own are refused, by `commit` and by `resolve` alike."""

import numpy as np
import pytest
from di_scheduler import Scheduler, SequenceLimits

from .harness import int32, small_config


@pytest.mark.parametrize("rows", [(2, 1), (1, 1), (1, 3), (0, 2)])
def test_drafts_that_do_not_stand_a_row_a_sequence_are_refused(rows: tuple[int, int]) -> None:
    scheduler = Scheduler(small_config(blocks=40, drafts=2, flights=2))
    scheduler.add(1, int32([1, 2, 3]), SequenceLimits(20))
    scheduler.plan()
    plan = scheduler.plan()
    wrong = np.ones(rows, np.int32)
    for take in (plan.resolve, scheduler.commit):
        with pytest.raises(ValueError, match="drafts has"):
            take(int32([5]), int32([1]), drafts=wrong)
        with pytest.raises(ValueError, match="confidences has"):
            take(int32([5]), int32([1]), confidences=wrong.astype(np.float32))
    assert scheduler.commit(
        int32([5]), int32([1]), drafts=np.ones((1, 2), np.int32)
    ).num_committed.tolist() == [1]


def test_a_plan_is_resolved_by_results_of_the_step_before_it_only() -> None:
    scheduler = Scheduler(small_config(blocks=40, flights=2))
    scheduler.add(1, int32([1, 2, 3]), SequenceLimits(20))
    first, second = scheduler.plan(), scheduler.plan()
    with pytest.raises(ValueError, match="counts has 1 entries, a step of 0 sampling sequences"):
        first.resolve(int32([5]), int32([1]))
    for tokens, counts in (([5, 5], [1, 1]), ([], []), ([5], [2**31 - 1]), ([5], [-1])):
        with pytest.raises(ValueError, match="counts"):
            second.resolve(int32(tokens), int32(counts))
    assert second.resolve(int32([5]), int32([1])).token_ids.tolist() == [5]
