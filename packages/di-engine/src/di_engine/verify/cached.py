"""The engine's cached path behind the interface of the golden checks: one sequence, fed in any schedule of chunks."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from di_cache import CacheLayout, CachePool
from di_kernels.ops.sampling import argmax
from di_model.batch import Batch, build_batch
from di_model.cache_spec import cache_spec
from di_model.config import ModelConfig
from di_model.decoder import DecoderLayer
from di_model.golden import DecodeResult, ForwardResult, LayerInputs
from di_model.model import Model, StepOutput
from di_model.parts import Selector
from di_model.reference import DraftOutput
from di_model.step import Step
from di_model.trace import Recorder, Trace, ignore
from torch import Tensor

SLOT = 1
"""The only sequence's state slot; slot 0 is the null slot."""


class CachedSequence:
    """One sequence in a pool of its own, which starts poisoned: a read of a cell never written gives NaN.

    Args:
        model: the cached model.
        tokens: the longest the sequence may become.
        block_size: tokens per cache block.
    """

    def __init__(self, model: Model, tokens: int, *, block_size: int = 128) -> None:
        text = model.config.text
        layout = CacheLayout.from_spec(
            cache_spec(
                model.config,
                model.numerics,
                block_size=block_size,
                draft=model.draft is not None,
                max_draft_tokens=text.dspark_block_size,
            )
        )
        blocks = layout.blocks_for(tokens)
        self.model, self.layout = model, layout
        self.pool = CachePool(layout, blocks + 1, SLOT + 1, poison=True)
        # Blocks are handed out backwards, so that an index into the pool cannot pass for a position.
        self.block_table = torch.arange(blocks, 0, -1, dtype=torch.int32)[None, :]
        self.slots = torch.tensor([SLOT], dtype=torch.int32)
        self.lookback = max(text.engram_max_ngram_size - 1, 1)
        self.ids: list[int] = []

    def append(self, ids: Tensor, recorder: Recorder = ignore) -> StepOutput:
        """Run one step over the next tokens ``ids``, int32 ``[rows]``."""
        output = self.model.forward(self.batch(ids), self.pool, recorder)
        self.ids += ids.tolist()
        return output

    def batch(self, ids: Tensor, window_columns: int | None = None) -> Batch:
        """The rows of a step over the next tokens ``ids``, int32 ``[rows]``."""
        before = [*reversed(self.ids[-self.lookback :])]
        context = before + [-1] * (self.lookback - len(before))
        return build_batch(
            self.layout,
            tokens=ids,
            q_start=torch.tensor([len(self.ids)], dtype=torch.int32),
            q_len=torch.tensor([len(ids)], dtype=torch.int32),
            slots=self.slots,
            block_table=self.block_table,
            context=torch.tensor([context], dtype=torch.int32),
            window_columns=window_columns,
        )

    def draft(self, token: int, length: int) -> DraftOutput:
        """Draft ``length`` tokens greedily behind ``token``, which comes next and which the backbone has not seen."""
        draft = self.model.draft
        if draft is None:
            raise ValueError("the model has no draft layers; load the checkpoint with draft=True")
        previous = torch.tensor([token], dtype=torch.int32)
        position = torch.tensor([len(self.ids)], dtype=torch.int32)
        block = draft.forward(previous, position, self.slots, self.pool, length)
        tokens, logits, confidence = [], [], []
        for i in range(length):
            row = draft.markov_logits(block.logits[:, i].contiguous(), previous)
            confidence.append(draft.confidence(block.hidden[:, i].contiguous(), previous))
            previous = argmax(row).to(torch.int32)
            tokens.append(previous)
            logits.append(row)
        return DraftOutput(torch.cat(tokens), torch.cat(logits), torch.cat(confidence))


class CachedRunner:
    """The cached model with one schedule, as a :class:`~di_model.golden.Runner` and ``LayerRunner``.

    Args:
        model: the cached model, built for at least the longest golden sequence and a draft behind it.
        chunk: rows of a prefill step; None runs a prompt whole.
    """

    def __init__(self, model: Model, chunk: int | None = None) -> None:
        self.model, self.chunk = model, chunk

    @property
    def config(self) -> ModelConfig:
        """Configuration of the checkpoint."""
        return self.model.config

    def forward(self, ids: Tensor, recorder: Recorder = ignore) -> ForwardResult:
        """See :meth:`di_model.golden.Runner.forward`."""
        return self._prefill(CachedSequence(self.model, len(ids)), ids, recorder)

    def cut_logits(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """See :meth:`di_model.golden.Runner.cut_logits`. Token by token, a cut prompt takes the steps of the whole."""
        if self.chunk == 1:
            return self.forward(ids).logits[[length - 1 for length in lengths]]
        return torch.stack([self.forward(ids[:length]).logits[-1] for length in lengths])

    def decode(self, prompt: Tensor, continuation: Tensor, draft_length: int) -> DecodeResult:
        """See :meth:`di_model.golden.Runner.decode`: the prompt in chunks, then one token a step."""
        sequence = CachedSequence(self.model, len(prompt) + len(continuation))
        logits = [self._prefill(sequence, prompt, ignore).logits[-1:]]
        drafts = []
        for fed, latest in zip(continuation[:-1], continuation[1:].tolist(), strict=True):
            logits.append(self.model.logits(sequence.append(fed[None]).hidden))
            if self.model.draft is not None:
                drafts.append(sequence.draft(latest, draft_length))
        return DecodeResult(torch.cat(logits), tuple(drafts))

    def run_layers(self, inputs: LayerInputs) -> Trace:
        """See :meth:`di_model.golden.LayerRunner.run_layers`: all rows in one step of an empty sequence."""
        trace = Trace()
        sequence = CachedSequence(self.model, len(inputs.ids))
        batch = sequence.batch(inputs.ids, inputs.window_columns(self.config))
        step = Step(batch, sequence.pool, observer=trace)
        for index, stream in sorted(inputs.in_stream.items()):
            layer = self.model.layers[index]
            if layer.engram is not None and index in inputs.engram_in:
                layer.engram(inputs.engram_in[index], step)
            given = inputs.topk.get(index)
            step.selected = step.selected if given is None else given
            _from_given_inputs(layer, given)(stream, inputs.in_mix[index], step)
        return trace

    def _prefill(self, sequence: CachedSequence, ids: Tensor, recorder: Recorder) -> ForwardResult:
        steps = [sequence.append(part, recorder) for part in torch.split(ids, self.chunk or len(ids))]
        features = [step.features for step in steps if step.features is not None]
        logits = self.model.logits(torch.cat([step.hidden for step in steps]))
        return ForwardResult(logits, torch.cat(features) if features else None)


class _GivenSelection:
    """An indexer that does its work and then has attention read a given selection instead of its own."""

    def __init__(self, indexer: Selector, selected: Tensor) -> None:
        self._indexer, self._selected = indexer, selected

    def __call__(self, x: Tensor, q_latent: Tensor, step: Step) -> None:
        self._indexer(x, q_latent, step)
        step.selected = self._selected


def _from_given_inputs(layer: DecoderLayer, selected: Tensor | None) -> DecoderLayer:
    """The layer after its Engram, attending to a given selection. The original is left as it is."""
    layer = copy.copy(layer)
    layer.engram = None
    indexer = layer.attention.indexer
    if indexer is not None and selected is not None:
        layer.attention = copy.copy(layer.attention)
        layer.attention.indexer = _GivenSelection(indexer, selected)
    return layer
