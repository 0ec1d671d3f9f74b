"""Who waits for output, and how committed tokens and ends become it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from di_scheduler import FinishReason as SchedulerFinishReason
from di_spec import FinishReason, LogprobEntry, RequestDelta, SampledTokens, TokenBytes

from di_engine.outputs import RequestOutput, prompt_entries, request_output
from di_engine.request import Request, RequestSequence
from di_engine.runner import StepResult
from di_engine.stats import EngineCounters

REASONS = tuple(FinishReason(number) for number in range(len(FinishReason)))
"""By number: as the enumeration itself, which takes longer to call."""
_RUNS = FinishReason.NONE


class Delivery:
    """The requests that have not ended, and what they are to get with the next step.

    An interruption may come between any two lines: ``settle`` puts in order what it left.

    Args:
        table: bytes of tokens.
        counters: of the engine.
        finish: tells the scheduler that a sequence has ended; does nothing when it knows.

    Attributes:
        requests: by id.
        sequences: by id, those of them that have not ended.
    """

    def __init__(
        self,
        table: TokenBytes,
        counters: EngineCounters,
        finish: Callable[[int, SchedulerFinishReason], object],
    ) -> None:
        self.requests: dict[str, Request] = {}
        self.sequences: dict[int, RequestSequence] = {}
        # To be delivered, each with the id of its sequence.
        self._outputs: list[tuple[int, RequestOutput]] = []
        self._table, self._counters, self._finish_scheduled = table, counters, finish

    def enter(self, request: Request) -> None:
        """Somebody waits for a request from now on."""
        self.requests[request.request_id] = request
        self.sequences.update((sequence.seq_id, sequence) for sequence in request.sequences)

    def take(
        self, sequence: RequestSequence, sampled: SampledTokens, count: int, finish: FinishReason
    ) -> None:
        """The first ``count`` tokens of a sequence are committed: the only place where they become output."""
        if sampled.error is not None:
            self._counters.nonfinite_sequences += not sampled.finite
            self.end(sequence, FinishReason.ERROR, sampled.error)
            return
        try:
            delta = sequence.output.commit(sampled.token_ids[:count], sampled.logprobs[:count], finish)
        except Exception as error:  # its neighbours must not pay for it
            self.end(sequence, FinishReason.ERROR, f"output failed: {type(error).__name__}: {error}")
            return
        if delta.finish_reason is _RUNS:
            self._emit(sequence, delta)
        else:
            self._finish(sequence, delta)

    def take_prompts(self, sequences: Sequence[RequestSequence], result: StepResult) -> None:
        """What a step says about the prompts of its sequences."""
        for index, entries in result.prompt_logprobs.items():
            collected = sequences[index].prompt_logprobs
            if collected is not None:
                collected.extend(entries)
        for index, error in result.not_finite.items():
            if sequences[index].seq_id in self.sequences:
                self._counters.nonfinite_sequences += 1
                self.end(sequences[index], FinishReason.ERROR, error)

    def end(self, sequence: RequestSequence, reason: FinishReason, error: str | None = None) -> None:
        """End a sequence from outside."""
        output = sequence.output
        if output.finished:  # it closed, but an interruption or an error came before its delivery
            delta = RequestDelta("", (), None, output.usage, reason, error=error)
        else:
            delta = output.close(reason, error)
        self._finish(sequence, delta)

    def abort(self, requests: Iterable[Request]) -> None:
        """End requests because the caller wants it."""
        for request in requests:
            for sequence in request.sequences:
                if sequence.seq_id in self.sequences:
                    self.end(sequence, FinishReason.ABORT)
            self._counters.requests_aborted += 1

    def settle(self) -> int:
        """End everything, from whatever state; returns how many requests."""
        for seq_id, output in self._outputs:
            if output.finish_reason is not None:
                self.sequences.pop(seq_id, None)  # it has its end, and must not get another
        found = list(self.requests.values())
        self.abort(found)
        self.requests.clear()
        self.sequences.clear()
        return len(found)

    @property
    def pending(self) -> bool:
        """Whether a request has not ended, or something is to be delivered."""
        return bool(self.requests or self._outputs)

    def take_outputs(self) -> list[RequestOutput]:
        """What is to be delivered, once, in the order in which it came."""
        outputs = [output for _, output in self._outputs]
        self._outputs = []
        return outputs

    def clear(self) -> None:
        """Forget everything: nobody waits any more."""
        self.requests.clear()
        self.sequences.clear()
        self._outputs.clear()

    def _finish(self, sequence: RequestSequence, delta: RequestDelta) -> None:
        """The one path on which a sequence, and with its last one a request, ends."""
        request = sequence.request
        self._finish_scheduled(sequence.seq_id, SchedulerFinishReason(delta.finish_reason))
        others = any(each.seq_id in self.sequences for each in request.sequences if each is not sequence)
        # The output goes first: after an interruption it says that this sequence has had its end.
        self._emit(sequence, delta, finished=not others)
        self.sequences.pop(sequence.seq_id, None)
        if not others:
            self.requests.pop(request.request_id, None)
            self._counters.requests_finished += 1
        self._counters.failed_sequences += delta.finish_reason is FinishReason.ERROR

    def _emit(self, sequence: RequestSequence, delta: RequestDelta, *, finished: bool = False) -> None:
        request = sequence.request
        request.completion_tokens += len(delta.token_ids)
        self._counters.output_tokens += len(delta.token_ids)
        output = request_output(sequence, delta, self._due_prompt_logprobs(sequence), finished=finished)
        self._outputs.append((sequence.seq_id, output))

    def _due_prompt_logprobs(self, sequence: RequestSequence) -> tuple[LogprobEntry, ...] | None:
        """The prompt's log-probabilities, once, as soon as all of them are there."""
        collected = sequence.prompt_logprobs
        if collected is None or sequence.missing_prompt_logprobs:
            return None
        sequence.prompt_logprobs = None
        return prompt_entries(collected, self._table)
