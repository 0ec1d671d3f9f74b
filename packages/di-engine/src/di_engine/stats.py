"""Counters of an engine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from di_scheduler import SchedulerStats


@dataclass
class EngineCounters:
    """What happened since the engine started.

    requests_added, requests_finished, requests_aborted: accepted, ended, and ended by ``abort``.
    failed_sequences: choices that ended with "error"; nonfinite_sequences: those because the model's logits were not
        finite.
    failed_steps: steps that ended in an exception.
    overlapped_steps: steps that were planned while another was computed.
    prompt_tokens, output_tokens: of accepted requests, and delivered.
    """

    requests_added: int = 0
    requests_finished: int = 0
    requests_aborted: int = 0
    failed_sequences: int = 0
    nonfinite_sequences: int = 0
    failed_steps: int = 0
    overlapped_steps: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    def snapshot(self) -> EngineCounters:
        """A copy that stays as it is."""
        return dataclasses.replace(self)


@dataclass(frozen=True)
class EngineStats:
    """``counters`` since the engine started; ``scheduler`` occupancy now, and counts since it was made (it is made
    anew after an interrupted step)."""

    counters: EngineCounters
    scheduler: SchedulerStats
