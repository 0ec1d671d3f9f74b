"""What a commit keeps, and when a sequence ends. [n] marks a finding of the scheduler specification, section 16."""

import numpy as np
import pytest
from di_scheduler import FinishReason, Scheduler, SchedulerConfig, SequenceLimits, SequenceState

from .harness import int32, small_config

EOS, STOP = 1, 2


DRAFTS = 4
DRAFTING = small_config(blocks=40, drafts=DRAFTS)


def offer(scheduler: Scheduler, *tokens: int) -> tuple[int, FinishReason]:
    """Plan a step in which one sequence samples, and commit these tokens to it; as many drafts as may follow."""
    plan = scheduler.plan()
    assert len(plan.sampling) == 1
    drafts = np.full((1, scheduler.config.max_draft_tokens), 6, np.int32)
    result = scheduler.commit(int32(list(tokens)), int32([len(tokens)]), drafts=drafts)
    return int(result.num_committed[0]), FinishReason(result.finish[0])


def one(limits: SequenceLimits, config: SchedulerConfig | None = None) -> Scheduler:
    """A sequence of three prompt tokens."""
    scheduler = Scheduler(config or small_config(blocks=40))
    scheduler.add(0, int32([9, 9, 9]), limits)
    return scheduler


def drafting(limits: SequenceLimits, config: SchedulerConfig = DRAFTING) -> Scheduler:
    """A sequence of three prompt tokens and one generated one, which has drafts for a decode."""
    scheduler = one(limits, config)
    assert offer(scheduler, 7) == (1, FinishReason.NONE)
    return scheduler


@pytest.mark.parametrize(
    "limits, tokens, kept, reason",
    [
        (SequenceLimits(9, eos_token_ids=(EOS,)), [5, EOS, 6], 2, FinishReason.STOP),
        (SequenceLimits(9, eos_token_ids=(8, EOS)), [EOS, 6], 1, FinishReason.STOP),
        (SequenceLimits(9, eos_token_ids=(EOS,), ignore_eos=True), [5, EOS, 6], 3, FinishReason.NONE),
        (SequenceLimits(9, stop_token_ids=(STOP,)), [5, STOP, 6], 2, FinishReason.STOP_TOKEN),
        (SequenceLimits(9, stop_token_ids=(STOP,), ignore_eos=True), [STOP, 6], 1, FinishReason.STOP_TOKEN),
        (SequenceLimits(9, eos_token_ids=(EOS,), stop_token_ids=(EOS,)), [EOS], 1, FinishReason.STOP),
        (SequenceLimits(4), [5, 6, 7], 3, FinishReason.LENGTH),
        (SequenceLimits(4, eos_token_ids=(EOS,)), [5, 6, EOS], 3, FinishReason.STOP),
        (SequenceLimits(9, min_tokens=3, eos_token_ids=(EOS,)), [EOS, EOS, 5, EOS], 4, FinishReason.STOP),
        (
            SequenceLimits(9, min_tokens=3, stop_token_ids=(STOP,)),
            [STOP, 5, STOP],
            3,
            FinishReason.STOP_TOKEN,
        ),
        (SequenceLimits(3, min_tokens=3, eos_token_ids=(EOS,)), [EOS, EOS], 2, FinishReason.LENGTH),
    ],
)
def test_tokens_after_a_stop_are_dropped(
    limits: SequenceLimits, tokens: list[int], kept: int, reason: FinishReason
) -> None:
    """Of a verify step that accepted drafts, as of so many steps with one token each."""
    together = drafting(limits)
    assert offer(together, *tokens) == (kept, reason)
    assert together.output_tokens(0).tolist() == [7, *tokens[:kept]]
    by_one = drafting(limits, small_config(blocks=40))
    ends = [offer(by_one, token)[1] for token in tokens[:kept]]
    assert ends == [FinishReason.NONE] * (kept - 1) + [reason]


def test_the_model_length_ends_a_sequence() -> None:
    scheduler = drafting(SequenceLimits(50), small_config(blocks=40, model_len=6, drafts=2))
    assert offer(scheduler, 5, 6, 8) == (2, FinishReason.LENGTH)


def test_the_last_token_is_not_in_the_cache_yet() -> None:
    scheduler = one(SequenceLimits(9))
    for length in (4, 5, 6):
        offer(scheduler, 5)
        info = scheduler.describe(0)
        assert (info.length, info.num_computed) == (length, length - 1)


def test_no_more_tokens_than_rows() -> None:
    """What a step cannot have computed is no result of it: that sequence ends, its neighbour goes on."""
    for tokens, kept in (([5], 1), ([5, 6], 0)):
        scheduler = one(SequenceLimits(9))
        reason = FinishReason.NONE if kept else FinishReason.ERROR
        assert offer(scheduler, *tokens) == (kept, reason)
    for accepted in range(DRAFTS + 2):
        scheduler = drafting(SequenceLimits(9))
        scheduler.add(1, int32([8]), SequenceLimits(9))
        assert scheduler.plan().q_len.tolist() == [1 + DRAFTS, 1]
        result = scheduler.commit(int32([6] * accepted + [5, 5]), int32([accepted + 1, 1]))
        assert result.num_committed.tolist() == [accepted + 1 if accepted <= DRAFTS else 0, 1]
        assert (result.finish[0] == FinishReason.ERROR) == (accepted > DRAFTS)


def test_rejected_drafts_are_computed_again_as_what_they_are() -> None:
    scheduler = drafting(SequenceLimits(9))
    assert offer(scheduler, 6, 3) == (2, FinishReason.NONE)  # one of four drafts was right
    info = scheduler.describe(0)
    assert (info.length, info.num_computed) == (6, 5)
    plan = scheduler.plan()
    assert (plan.q_start.tolist(), plan.token_ids.tolist()) == ([5], [3, 6, 6, 6, 6])


@pytest.mark.parametrize("row, count", [([-1, 6, 6, 6], 0), ([6, 6, -1, 6], 2), ([6, 6, 6, 6], 4)])
def test_a_negative_id_ends_a_row_of_drafts(row: list[int], count: int) -> None:
    scheduler = one(SequenceLimits(9), DRAFTING)
    scheduler.plan()
    scheduler.commit(int32([7]), int32([1]), drafts=np.array([row], np.int32))
    plan = scheduler.plan()
    assert plan.token_ids.tolist() == [7, *row[:count]]
    assert plan.decodes.tolist() == [True]


def test_drafts_stop_at_what_may_still_be_generated() -> None:
    for limits, model_len, rows in ((SequenceLimits(3), 64, 2), (SequenceLimits(50), 6, 3)):
        scheduler = drafting(limits, small_config(blocks=40, drafts=DRAFTS, model_len=model_len))
        assert scheduler.plan().q_len.tolist() == [rows]


def test_a_chunk_that_yields_nothing_is_not_reported() -> None:
    scheduler = one(SequenceLimits(9), small_config(blocks=40, seqs=2, budget=2))
    plan = scheduler.plan()
    assert (plan.samples.tolist(), plan.sampling.tolist()) == ([False], [])
    assert scheduler.commit(int32([]), int32([])).seq_ids.tolist() == []
    assert scheduler.describe(0).num_computed == 2


def test_blocks_and_slot_are_free_as_soon_as_a_sequence_ends() -> None:
    """[16, 19]"""
    scheduler = one(SequenceLimits(1))
    offer(scheduler, 5)
    stats = scheduler.stats()
    assert (stats.used_blocks, stats.used_slots, stats.running) == (0, 0, 0)
    info = scheduler.describe(0)
    assert (info.state, info.finish) == (SequenceState.FINISHED, FinishReason.LENGTH)
    assert (info.slot, info.block_table.tolist()) == (0, [])
    assert not scheduler.has_unfinished()


def test_an_ended_sequence_can_be_read_until_the_next_plan() -> None:
    scheduler = one(SequenceLimits(1))
    offer(scheduler, 5)
    assert scheduler.output_tokens(0).tolist() == [5]
    scheduler.plan()
    with pytest.raises(KeyError):
        scheduler.output_tokens(0)
    with pytest.raises(KeyError):
        scheduler.describe(0)


def trio() -> Scheduler:
    scheduler = Scheduler(small_config(blocks=40))
    for seq_id in range(3):
        scheduler.add(seq_id, int32([9, 9]), SequenceLimits(9))
    scheduler.plan()
    return scheduler


@pytest.mark.parametrize(
    "tokens, counts", [([5, -1, 6], [1, 1, 1]), ([5, 6], [1, 0, 1]), ([5, 6, 8, 6], [1, 2, 1])]
)
def test_an_impossible_result_ends_its_sequence_only(tokens: list[int], counts: list[int]) -> None:
    """[23]"""
    scheduler = trio()
    result = scheduler.commit(int32(tokens), int32(counts))
    assert result.seq_ids.tolist() == [0, 1, 2]
    assert result.num_committed.tolist() == [1, 0, 1]
    assert result.finish.tolist() == [FinishReason.NONE, FinishReason.ERROR, FinishReason.NONE]
    assert [scheduler.output_tokens(i).tolist() for i in (0, 2)] == [[5], [6]]
    assert scheduler.plan().seq_ids.tolist() == [0, 2]


def test_a_reported_failure_ends_its_sequence_only() -> None:
    scheduler = trio()
    failed = np.array([False, True, False])
    result = scheduler.commit(int32([5, 6, 7]), int32([1, 1, 1]), failed)
    assert result.num_committed.tolist() == [1, 0, 1]
    assert result.finish.tolist() == [FinishReason.NONE, FinishReason.ERROR, FinishReason.NONE]
    assert scheduler.output_tokens(1).tolist() == []
    assert scheduler.plan().seq_ids.tolist() == [0, 2]


@pytest.mark.parametrize(
    "tokens, counts, failed, match",
    [
        ([5, 6], [1, 1], None, "counts has 2 entries, a step of 3 sampling sequences needs 3"),
        ([5, 6], [1, 1, 1], None, "counts add up to 3, tokens has 2"),
        ([5, 6, 7, 8], [1, 1, 1], None, "counts add up to 3, tokens has 4"),
        ([5, 6, 7], [2, 2, -1], None, r"counts\[2\] must be at least 0, got -1"),
        ([5, 6, 7], [1, 1, 1], [True], "failed has 1 entries"),
        ([5, 6, 7], [1, 1, 1], [], "failed has 0 entries"),
    ],
)
def test_arrays_that_do_not_fit_change_nothing(
    tokens: list[int], counts: list[int], failed: list[bool] | None, match: str
) -> None:
    scheduler = trio()
    flags = None if failed is None else np.array(failed, np.bool_)
    with pytest.raises(ValueError, match=match):
        scheduler.commit(int32(tokens), int32(counts), flags)
    result = scheduler.commit(int32([5, 6, 7]), int32([1, 1, 1]))
    assert result.num_committed.tolist() == [1, 1, 1]


def test_arrays_of_another_kind_are_type_errors() -> None:
    scheduler = trio()
    good = int32([1, 1, 1])
    with pytest.raises(TypeError, match=r"^tokens must be"):
        scheduler.commit(good.astype(np.int64), good)
    with pytest.raises(TypeError, match=r"^counts must be"):
        scheduler.commit(good, [1, 1, 1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^failed must be"):
        scheduler.commit(good, good, good)  # type: ignore[arg-type]
    assert scheduler.commit(good, good).num_committed.tolist() == [1, 1, 1]
