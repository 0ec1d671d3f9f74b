"""Ctrl-C may come between any two lines of the engine, its pipeline or its delivery, and again while it clears up."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import di_engine.delivery
import di_engine.engine
import di_engine.pipeline
import pytest
from di_engine import LLMEngine, RequestOutput, SamplingParams
from di_engine.testing import follow

STORY = (10, 11, 12, 13, 14)
FILES = (di_engine.delivery.__file__, di_engine.engine.__file__, di_engine.pipeline.__file__)
PARAMS = SamplingParams(temperature=0, max_tokens=3, n=2, prompt_logprobs=0)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def async_scheduling(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


class Interrupts:
    """Raises KeyboardInterrupt in the host's thread at the given line, counted from ``armed``, and again so many lines
    into the clearing up that follows."""

    def __init__(self, line: int, again: int | None = None) -> None:
        self._left, self._again = line, again

    @contextmanager
    def armed(self, engine: LLMEngine) -> Iterator[None]:
        before, new_scheduler = sys.gettrace(), engine._new_scheduler

        def clearing_up() -> Any:
            if self._again is not None and self._left < 0:
                self._left, self._again = self._again, None
                sys.settrace(self._trace)  # an exception in a trace function has switched it off
                sys._getframe(1).f_trace = self._trace
            return new_scheduler()

        engine._new_scheduler = clearing_up  # type: ignore[method-assign]
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)
            engine._new_scheduler = new_scheduler  # type: ignore[method-assign]

    def _trace(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_filename not in FILES:
            return None
        # What "step" was about to return is lost with it; everything else must not be.
        returning = frame.f_code.co_name in ("step", "take_outputs")
        if event == "line" and not returning and self._left >= 0:
            self._left -= 1
            if self._left < 0:
                raise KeyboardInterrupt
        return self._trace


def scenario(engine: LLMEngine, added: list[str], outputs: list[RequestOutput]) -> None:
    for name in ("a", "b", "c"):
        engine.add_request(name, STORY[:2], PARAMS)
        added.append(name)
        outputs += engine.step()
    engine.abort("b")
    while engine.has_unfinished():
        outputs += engine.step()


def check(engine: LLMEngine, interrupts: Interrupts) -> bool:
    """One interrupted scenario, and that nothing of it is left; whether it was interrupted at all."""
    added: list[str] = []
    outputs: list[RequestOutput] = []
    interrupted = False
    try:
        with interrupts.armed(engine):
            scenario(engine, added, outputs)
    except KeyboardInterrupt:
        interrupted = True
    for _ in range(20):
        if not engine.has_unfinished():
            break
        outputs += engine.step()
    assert not engine.has_unfinished()
    ends = [(output.request_id, output.index) for output in outputs if output.finish_reason is not None]
    assert len(ends) == len(set(ends))
    assert {(name, index) for name in added for index in range(2)} <= set(ends)
    finished = [output.request_id for output in outputs if output.finished]
    assert len(finished) == len(set(finished))
    assert set(added) <= set(finished)
    stats = engine.stats().scheduler
    assert (stats.used_blocks, stats.used_slots, stats.waiting, stats.running) == (0, 0, 0, 0)
    return interrupted


@pytest.mark.parametrize("again", [None, 3, 11, 24, 40, 60])
def test_every_request_ends_once_wherever_interruptions_come(make_scripted: Any, again: int | None) -> None:
    engine = make_scripted(follow(STORY), max_num_seqs=4, num_blocks=6, block_size=2)
    line = 0
    while check(engine, Interrupts(line, again)):
        line += 1 if again is None else 7
    assert line > 200  # the scenario was interrupted all along
    engine.add_request("after", STORY[:2], PARAMS)
    tokens: dict[int, tuple[int, ...]] = {0: (), 1: ()}
    while engine.has_unfinished():
        for output in engine.step():
            tokens[output.index] += output.token_ids
    assert tokens == {0: STORY[2:], 1: STORY[2:]}
