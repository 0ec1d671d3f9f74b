"""Who waits for the scheduler's own lock does not hold the interpreter's, so that nobody waits in a circle."""

import gc
import time

import pytest
from di_scheduler import Scheduler, SequenceLimits

from .harness import int32, small_config
from .test_threads import run_together


class Finalized:
    """Garbage whose collection gives other threads a turn, as any finalizer may."""

    alive = 0

    def __init__(self) -> None:
        self.itself = self
        Finalized.alive += 1

    def __del__(self) -> None:
        time.sleep(0.001)
        Finalized.alive -= 1


@pytest.mark.timeout(60)
def test_a_finalizer_in_the_middle_of_a_call_stops_nobody() -> None:
    scheduler = Scheduler(small_config(blocks=40))
    scheduler.add(1, int32([1, 2, 3]), SequenceLimits(20))
    scheduler.plan()
    end = time.monotonic() + 0.5
    threshold = gc.get_threshold()

    def describe() -> None:
        while time.monotonic() < end:
            if Finalized.alive < 10:
                Finalized()
            scheduler.describe(1)
            scheduler.stats()

    def ask() -> None:
        while time.monotonic() < end:
            scheduler.has_unfinished()
            scheduler.waiting_ids()

    gc.set_threshold(2, 1000, 1000)  # young objects, at every turn
    try:
        run_together(describe, ask, ask)
    finally:
        gc.set_threshold(*threshold)
    assert scheduler.has_unfinished()
