"""What a golden check needs from a model, and the reference model behind that interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from di_model.config import ModelConfig
from di_model.reference import DraftOutput, ReferenceModel
from di_model.trace import Recorder, Trace, ignore


@dataclass(frozen=True, eq=False)
class ForwardResult:
    """A prompt run from the start.

    Attributes:
        logits: float32 ``[T, V]`` of every position.
        features: ``[T, targets*D]`` draft features, or None for a model without draft layers.
    """

    logits: Tensor
    features: Tensor | None


@dataclass(frozen=True, eq=False)
class DecodeResult:
    """A prompt continued with given tokens.

    Attributes:
        logits: float32 ``[tokens, V]``; row ``j`` predicts token ``j`` of the continuation.
        drafts: blocks drafted behind continuation tokens 1, 2, ...; nothing is drafted behind token 0.
    """

    logits: Tensor
    drafts: tuple[DraftOutput, ...]


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """Golden inputs from which each layer is run by itself, by layer number.

    Attributes:
        ids: int32 ``[T]`` tokens.
        engram_in: trunk ``[T, m, D]`` before the Engram of a layer.
        in_stream: trunk ``[T, m, D]`` that the attention of a layer finds.
        in_mix: float32 ``[T, m]`` pre-mix of the sub-layer before.
        topk: int32 ``[T, index_topk]`` selection that the attention of a layer uses, whatever its indexer says.
    """

    ids: Tensor
    engram_in: Mapping[int, Tensor]
    in_stream: Mapping[int, Tensor]
    in_mix: Mapping[int, Tensor]
    topk: Mapping[int, Tensor]

    def window_columns(self, config: ModelConfig) -> int:
        """Columns that window keys take in the release's whole prefill: as many as the prompt has, up to the window."""
        return min(len(self.ids), config.text.sliding_window)


class Runner(Protocol):
    """Runs one checkpoint in one numerics with one schedule."""

    @property
    def config(self) -> ModelConfig:
        """Configuration of the checkpoint."""

    def forward(self, ids: Tensor, recorder: Recorder = ignore) -> ForwardResult:
        """Run a prompt, int32 ``[T]``, from the start, however it is cut into steps."""

    def cut_logits(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """Logits float32 ``[lengths, V]`` of the last position of a prompt cut to each length."""

    def decode(self, prompt: Tensor, continuation: Tensor, draft_length: int) -> DecodeResult:
        """Run a prompt, then feed ``continuation`` and draft ``draft_length`` tokens behind each but the first.

        The logits of row 0 come from the prompt. The last token of the continuation is not fed, but a block is
        drafted behind it from the positions before.
        """


class LayerRunner(Protocol):
    """Runs single layers from given inputs."""

    @property
    def config(self) -> ModelConfig:
        """Configuration of the checkpoint."""

    def run_layers(self, inputs: LayerInputs) -> Trace:
        """Run every layer of ``in_stream`` in order, each from its own inputs; later layers read the entries and
        index keys that earlier ones made. Records the names of :class:`~di_model.trace.Traced`, except that
        ``index_scores`` may be missing.
        """


class ReferenceRunner:
    """The reference model as a :class:`Runner` and :class:`LayerRunner`."""

    def __init__(self, model: ReferenceModel) -> None:
        self.model = model

    @property
    def config(self) -> ModelConfig:
        """Configuration of the checkpoint."""
        return self.model.config

    @torch.no_grad()
    def forward(self, ids: Tensor, recorder: Recorder = ignore) -> ForwardResult:
        """See :meth:`Runner.forward`."""
        output = self.model.forward(ids, recorder)
        return ForwardResult(output.logits, output.features)

    def cut_logits(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """See :meth:`Runner.cut_logits`."""
        return torch.stack([self.forward(ids[:length]).logits[-1] for length in lengths])

    @torch.no_grad()
    def decode(self, prompt: Tensor, continuation: Tensor, draft_length: int) -> DecodeResult:
        """See :meth:`Runner.decode`. Without a cache, one pass over everything gives every step."""
        output = self.model.forward(torch.cat([prompt, continuation[:-1]]))
        first = len(prompt)
        drafts = tuple(
            self.model.draft(output.features, int(continuation[j]), first + j, draft_length)
            for j in range(1, len(continuation))
        )
        return DecodeResult(output.logits[first - 1 :], drafts)

    @torch.no_grad()
    def run_layers(self, inputs: LayerInputs) -> Trace:
        """See :meth:`LayerRunner.run_layers`."""
        trace, state = Trace(), self.model.start(inputs.ids)
        state.window_columns = inputs.window_columns(self.config)
        for index, stream in sorted(inputs.in_stream.items()):
            if index in inputs.engram_in:
                self.model.engram(index, inputs.engram_in[index], state, trace)
            topk = inputs.topk.get(index)
            self.model.layer(index, stream, inputs.in_mix[index], state, topk=topk, trace=trace)
        return trace
