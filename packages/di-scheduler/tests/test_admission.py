"""What `add` takes and what it refuses: a refused sequence leaves nothing behind."""

import pickle
from typing import Any

import numpy as np
import pytest
from di_scheduler import AdmissionError, Scheduler, SequenceLimits

from .harness import int32, small_config

LIMITS = SequenceLimits(max_tokens=4)


def refuse(scheduler: Scheduler, reason: str, match: str, **arguments: Any) -> None:
    call: dict[str, Any] = {"seq_id": 1, "prompt": int32([5]), "limits": LIMITS, **arguments}
    before = scheduler.stats()
    with pytest.raises(AdmissionError, match=match) as caught:
        scheduler.add(**call)
    assert caught.value.reason == reason
    after = scheduler.stats()
    assert after.refusals == before.refusals + 1
    assert (after.waiting, after.used_blocks) == (before.waiting, before.used_blocks)


def test_malformed_arguments_are_refused() -> None:
    scheduler = Scheduler(small_config())
    refuse(scheduler, "empty_prompt", "at least 1 token, got 0", prompt=int32([]))
    refuse(scheduler, "invalid_token", r"prompt\[1\].*got -7", prompt=int32([3, -7]))
    refuse(scheduler, "invalid_arrival", "finite time, got nan", arrival=float("nan"))
    refuse(scheduler, "invalid_arrival", "finite time, got inf", arrival=float("inf"))
    refuse(scheduler, "invalid_id", "at least 0, got -1", seq_id=-1)
    assert not scheduler.has_unfinished()


def test_an_id_is_unique_among_unfinished_sequences() -> None:
    scheduler = Scheduler(small_config())
    scheduler.add(1, int32([5]), LIMITS)
    refuse(scheduler, "duplicate_id", "seq_id 1 belongs to an unfinished sequence")
    scheduler.abort(1)
    scheduler.add(1, int32([6]), LIMITS)
    assert scheduler.plan().token_ids.tolist() == [6]


def test_a_refusal_survives_pickling() -> None:
    with pytest.raises(AdmissionError) as caught:
        Scheduler(small_config()).add(1, int32([]), LIMITS)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.reason, str(copy)) == ("empty_prompt", str(caught.value))


def test_a_prompt_must_leave_a_token_of_the_model_length() -> None:
    scheduler = Scheduler(small_config(blocks=100, model_len=16))
    refuse(
        scheduler, "prompt_too_long", "16 tokens, max_model_len 16 allows at most 15", prompt=int32([5] * 16)
    )
    scheduler.add(1, int32([5] * 15), LIMITS)


@pytest.mark.parametrize(
    "bad",
    [
        [5],
        np.array([5], np.int64),
        np.array([5.0]),
        int32([5, 6, 7])[::2],
        int32([5]).reshape(1, 1),
        np.frombuffer(bytes(9), np.int32, offset=1),
    ],
)
def test_an_array_of_another_kind_is_a_type_error(bad: Any) -> None:
    scheduler = Scheduler(small_config())
    with pytest.raises(TypeError, match=r"^prompt must be"):
        scheduler.add(1, bad, LIMITS)
    assert not scheduler.has_unfinished()


def test_the_prompt_is_copied() -> None:
    scheduler = Scheduler(small_config())
    prompt = int32([5, 6])
    scheduler.add(1, prompt, LIMITS)
    prompt[:] = 0
    assert scheduler.plan().token_ids.tolist() == [5, 6]


def test_a_read_only_prompt_is_accepted() -> None:
    scheduler = Scheduler(small_config())
    prompt = int32([5, 6])
    prompt.flags.writeable = False
    scheduler.add(1, prompt, LIMITS)
    assert scheduler.plan().token_ids.tolist() == [5, 6]
