"""Offline generation: prompts in, one result per prompt out."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from os import PathLike
from types import TracebackType
from typing import Any, SupportsIndex, cast

import numpy as np
from di_model.tokenizer import Tokenizer
from di_spec import LogprobEntry, SamplingParams, Usage
from tqdm import tqdm  # type: ignore[import-untyped]

from di_engine.config import EngineConfig
from di_engine.engine import LLMEngine
from di_engine.errors import EngineClosedError, RequestError
from di_engine.loading import LoadedModel
from di_engine.outputs import ChoiceResult, RequestOutput, RequestResult
from di_engine.request import Prompt


class LLM:
    """A model that answers lists of prompts. Use it as a context manager, or call ``close``."""

    def __init__(
        self, model: str | PathLike[str], *, loaded: LoadedModel | None = None, **config: Any
    ) -> None:
        """Load a checkpoint directory.

        Args:
            model: the directory, or the name of a model that the package ships ("nano").
            loaded: a model to serve instead of the one in ``model``.
            config: fields of :class:`~di_engine.EngineConfig`, enumerations by value (``numerics="float32"``).

        Raises:
            EngineConfigError: a setting is unknown or out of range.
            FileNotFoundError, ValueError: see :func:`~di_engine.loading.load_model`.
        """
        self.engine = LLMEngine(EngineConfig.from_dict({"model": model, **config}), loaded=loaded)
        self._ids = itertools.count()
        self._turn = threading.RLock()
        self._running: dict[str, _Pending] = {}

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.engine.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestResult]:
        """Generate for every prompt. Calls from several threads wait for each other.

        Args:
            prompts: text or token ids, or a sequence of prompts.
            sampling_params: for all prompts, or one per prompt; None: ``SamplingParams()``.
            use_tqdm: show a progress bar.

        Returns:
            One result per prompt, in order. A prompt that is refused, or fails, has finish reason "error" and says
            why in ``error``; the others are not affected.

        Raises:
            ValueError: as many parameters as prompts are needed, and there are not. Nothing was started.
            KeyboardInterrupt: after all requests were aborted; the engine can be used on.
            RuntimeError: somebody else stepped the engine meanwhile, and has the results.
        """
        items = _as_prompts(prompts)
        params = _as_params(sampling_params, len(items))
        with self._turn:
            self.engine.has_unfinished()  # raises when the engine is closed
            return self._generate(items, params, show_progress=use_tqdm and sys.stderr is not None)

    def close(self) -> None:
        """Release the model and its caches. Calling it again does nothing."""
        self.engine.close()

    def __enter__(self) -> LLM:
        self.engine.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _generate(
        self, items: list[Prompt], params: list[SamplingParams], *, show_progress: bool
    ) -> list[RequestResult]:
        pending = [_Pending(prompt, each.n) for prompt, each in zip(items, params, strict=True)]
        running = self._running
        self.engine.abort(running)  # what an interruption of the clearing up left
        running.clear()
        try:
            for entry, each in zip(pending, params, strict=True):
                request_id = f"llm-{next(self._ids)}"
                running[request_id] = entry
                try:
                    self.engine.add_request(request_id, entry.prompt, each)
                except RequestError as error:
                    entry.refuse(str(error))
                    del running[request_id]
            with _progress_bar(len(pending), show_progress) as advance:
                advance(len(pending) - len(running))
                self._run(advance)
        except BaseException:
            self._give_up()
            raise
        return [entry.result() for entry in pending]

    def _run(self, advance: Callable[[int], object]) -> None:
        running = self._running
        while running:
            if not self.engine.has_unfinished():  # else this would wait forever
                raise RuntimeError("somebody else stepped or aborted the engine during generate")
            for output in self.engine.step():
                entry = running.get(output.request_id)
                if entry is None:
                    continue
                entry.add(output)
                if output.finished:
                    del running[output.request_id]
                    advance(1)

    def _give_up(self) -> None:
        """Abort everything and drop what it still has to deliver."""
        with suppress(EngineClosedError):
            self.engine.abort_all()
            self.engine.step()


@contextmanager
def _progress_bar(total: int, show: bool) -> Iterator[Callable[[int], object]]:
    """What advances the bar. One that is not shown is not made: all bars of a process share a lock."""
    if show:
        with tqdm(total=total, desc="Generating", unit="prompt") as bar:
            yield bar.update
    else:
        yield lambda count: None


@dataclass(eq=False)
class _Choice:
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[LogprobEntry] | None = None
    finish_reason: str = "error"
    stop_reason: str | int | None = None
    error: str | None = None

    def add(self, output: RequestOutput) -> None:
        self.text.append(output.text)
        self.token_ids += output.token_ids
        if output.logprobs is not None:
            if self.logprobs is None:
                self.logprobs = []
            self.logprobs.extend(output.logprobs)
        if output.finish_reason is not None:
            self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
            self.error = output.error

    def result(self, index: int) -> ChoiceResult:
        return ChoiceResult(
            index,
            "".join(self.text),
            tuple(self.token_ids),
            None if self.logprobs is None else tuple(self.logprobs),
            self.finish_reason,
            self.stop_reason,
            self.error,
        )


class _Pending:
    """The result of one prompt while its deltas come in."""

    def __init__(self, prompt: Prompt, num_choices: int) -> None:
        self.prompt = prompt
        self._choices = [_Choice() for _ in range(num_choices)]
        self._prompt_logprobs: tuple[LogprobEntry, ...] | None = None
        self._usage = Usage(0, 0)

    def refuse(self, error: str) -> None:
        for choice in self._choices:
            choice.error = error

    def add(self, output: RequestOutput) -> None:
        self._choices[output.index].add(output)
        self._usage = output.usage
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = output.prompt_logprobs

    def result(self) -> RequestResult:
        choices = tuple(choice.result(index) for index, choice in enumerate(self._choices))
        return RequestResult(self.prompt, choices, self._prompt_logprobs, self._usage)


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A list of prompts. A sequence with numbers, and without text or sequences, is one prompt of token ids; of every
    other the members are refused or served one by one."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence | np.ndarray) or (
        isinstance(prompts, np.ndarray) and prompts.ndim == 0
    ):
        allowed = "a prompt (text, or a sequence of token ids), or a sequence of prompts"
        raise TypeError(f"prompts: got {type(prompts).__name__}, allowed: {allowed}")
    holds_prompts = any(isinstance(item, str | Sequence | np.ndarray) for item in prompts)
    if not holds_prompts and any(isinstance(item, SupportsIndex | float) for item in prompts):
        return [cast("Sequence[int]", prompts)]
    return list(cast("Sequence[Prompt]", prompts))


def _as_params(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    if not isinstance(params, Iterable) or isinstance(params, str | Mapping):
        raise TypeError(
            f"sampling_params: got {type(params).__name__}, allowed: SamplingParams, one or several"
        )
    listed = list(params)
    if len(listed) != num_prompts:
        raise ValueError(
            f"sampling_params: got {len(listed)}, allowed: one, or one for each of {num_prompts} prompts"
        )
    for index, each in enumerate(listed):
        if not isinstance(each, SamplingParams):
            raise TypeError(f"sampling_params[{index}]: got {type(each).__name__}, allowed: SamplingParams")
    return listed
