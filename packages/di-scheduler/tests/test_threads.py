"""Several threads at once: a device behind, callers beside; also run under the thread sanitizer (`make sanitize`)."""

import random
import threading
from collections.abc import Callable

import numpy as np
import pytest
from di_scheduler import FinishReason, Scheduler, SequenceLimits, SequenceOptions
from di_scheduler.config import StepPolicy
from di_scheduler.errors import ConfigError
from di_scheduler.testing import StubDevice

from .harness import int32, small_config

DRAFTS = 3


def run_together(*functions: Callable[[], None]) -> None:
    """Each in a thread of its own; raises what any of them raises."""
    errors: list[BaseException] = []

    def guarded(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive(), "a thread did not end"
    if errors:
        raise errors[0]


class Service:
    """One thread plans and commits, a stub device computes, others come and go."""

    def __init__(self, policy: StepPolicy) -> None:
        config = small_config(
            blocks=40,
            block_size=4,
            seqs=8,
            budget=24,
            chunk=7,
            model_len=60,
            policy=policy,
            drafts=DRAFTS,
            flights=2,
        )
        self.scheduler = Scheduler(config)
        self.device = StubDevice(base_us=20.0, row_us=1.0, max_draft_tokens=DRAFTS)
        self.ends: dict[int, FinishReason] = {}
        self.callers = 0
        self.lock = threading.Lock()

    def serve(self) -> None:
        """Keeps the device one plan ahead until every caller has gone and nothing is left."""
        while self.callers or self.scheduler.has_unfinished():
            plan = self.scheduler.plan() if self.scheduler.num_open_plans() < 2 else None
            if plan is not None and plan.num_seqs:
                self.device.submit(plan)
                if self.scheduler.num_open_plans() < 2:
                    continue
            if self.scheduler.num_open_plans():
                result = self.device.wait()
                kept = self.scheduler.commit(result.tokens, result.counts, drafts=result.drafts)
                for seq_id, finish in zip(kept.seq_ids.tolist(), kept.finish.tolist(), strict=True):
                    if finish:
                        self.ends[seq_id] = FinishReason(finish)

    def call(self, first_id: int, count: int) -> None:
        """Adds sequences, aborts some of them and looks around."""
        rng = random.Random(first_id)
        for seq_id in range(first_id, first_id + count):
            prompt = int32([rng.randrange(100) for _ in range(rng.randint(1, 40))])
            options = SequenceOptions(
                priority=rng.randrange(2), user=rng.randrange(3), ready=rng.random() < 0.8
            )
            self.scheduler.add(seq_id, prompt, SequenceLimits(rng.randint(1, 12)), options=options)
            if rng.random() < 0.2:
                self.scheduler.abort(rng.randint(first_id, seq_id))
            self.scheduler.set_ready(seq_id)
            assert self.scheduler.stats().free_blocks <= 40
            self.scheduler.waiting_ids()
        with self.lock:
            self.callers -= 1


@pytest.mark.parametrize("policy", StepPolicy)
def test_callers_and_a_device_beside_the_planning_thread(policy: StepPolicy) -> None:
    service = Service(policy)
    service.callers = 3
    run_together(
        service.serve,
        lambda: service.call(0, 60),
        lambda: service.call(1000, 60),
        lambda: service.call(2000, 60),
    )
    stats = service.scheduler.stats()
    assert (stats.free_blocks, stats.used_slots, stats.waiting, stats.running) == (40, 0, 0, 0)
    assert stats.drafts_accepted > 0
    assert len(service.ends) > 100


def test_a_plan_is_resolved_by_several_threads_alike() -> None:
    scheduler = Scheduler(small_config(blocks=40, drafts=DRAFTS, flights=2))
    for seq_id in range(4):
        scheduler.add(seq_id, int32([1, 2, 3]), SequenceLimits(20))
    scheduler.plan()
    plan = scheduler.plan()
    tokens, counts = int32([5, 6, 7, 8]), int32([1, 1, 1, 1])
    drafts = np.arange(4 * DRAFTS, dtype=np.int32).reshape(4, DRAFTS)
    seen: list[list[int]] = []

    def resolve() -> None:
        for _ in range(50):
            seen.append(plan.resolve(tokens, counts, drafts).token_ids.tolist())

    def commit() -> None:
        scheduler.commit(tokens, counts, drafts=drafts)

    run_together(resolve, resolve, commit)
    assert len(seen) == 100
    assert all(ids == seen[0] for ids in seen)
    assert seen[0][0] == 5
    assert -1 in plan.token_ids.tolist()  # the plan itself stays as it was


def test_a_stub_device_gives_no_result_without_a_step_and_refuses_negative_times() -> None:
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        StubDevice(1.0).wait(timeout=0.01)
    with pytest.raises(ConfigError, match="row_us"):
        StubDevice(1.0, -1.0)
