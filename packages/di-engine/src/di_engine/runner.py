"""Executes a planned step: arrays to tensors, model forward, logits, tokens. Decides nothing about scheduling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from di_cache import CachePool
from di_model.batch import Batch, build_batch
from di_scheduler import StepPlan
from di_spec import NonFiniteLogitsError, Sampler, TokenLogprobs, prompt_logprobs
from numpy.typing import NDArray
from torch import Tensor

from di_engine.loading import LoadedModel
from di_engine.request import RequestSequence

LOGITS_TILE_BYTES = 64 << 20
"""Logits held at once. Rows do not influence each other, so the size of a tile changes no bit."""


@dataclass(frozen=True, eq=False)
class SampledTokens:
    """Tokens that a step offers one sequence, in order: one from the sampler, more with speculation.

    token_ids: empty when the sequence failed.
    logprobs: one entry a token, None where the request does not ask.
    error: why it failed.
    finite: whether the model's logits were finite.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...]
    error: str | None = None
    finite: bool = True


@dataclass(frozen=True, eq=False)
class StepResult:
    """What a step computed.

    sampled: one entry for each of ``plan.sampling``.
    prompt_logprobs: new entries by index of the sequence in the plan, following those it has.
    not_finite: sequences of the plan, by index, whose prompt rows have logits that are not finite.
    """

    sampled: tuple[SampledTokens, ...]
    prompt_logprobs: Mapping[int, Sequence[TokenLogprobs]] = field(default_factory=dict)
    not_finite: Mapping[int, str] = field(default_factory=dict)


class StepRunner(Protocol):
    """Computes a step."""

    def run(self, plan: StepPlan, sequences: Sequence[RequestSequence]) -> StepResult:
        """``sequences`` are those of the plan, in its order. They are read, not changed."""


class ModelRunner:
    """Owns the cache pools and runs steps of a model over them."""

    def __init__(self, loaded: LoadedModel, *, logits_tile_bytes: int = LOGITS_TILE_BYTES) -> None:
        capacity = loaded.capacity
        self.cache = CachePool(capacity.layout, capacity.num_blocks, capacity.num_slots)
        self._model = loaded.model
        self._sampler = Sampler()
        self._tile_rows = max(1, logits_tile_bytes // (4 * loaded.config.text.vocab_size))

    @torch.inference_mode()
    def run(self, plan: StepPlan, sequences: Sequence[RequestSequence]) -> StepResult:
        """Compute the rows of a step, sample where it asks for a token, and describe prompt tokens that are due."""
        hidden = self._model.forward(self._batch(plan), self.cache).hidden
        entries: dict[int, Sequence[TokenLogprobs]] = {}
        not_finite: dict[int, str] = {}
        for index, sequence in enumerate(sequences):
            try:
                entries[index] = self._prompt_logprobs(plan, index, sequence, hidden)
            except NonFiniteLogitsError as error:
                not_finite[index] = str(error)
        return StepResult(self._sample(plan, sequences, hidden), entries, not_finite)

    def _batch(self, plan: StepPlan) -> Batch:
        return build_batch(
            self.cache.layout,
            tokens=_tensor(plan.token_ids),
            q_start=_tensor(plan.q_start),
            q_len=_tensor(plan.q_len),
            slots=_tensor(plan.slots),
            block_table=_tensor(plan.block_table),
            context=_tensor(plan.context),
        )

    def _sample(
        self, plan: StepPlan, sequences: Sequence[RequestSequence], hidden: Tensor
    ) -> tuple[SampledTokens, ...]:
        """One token for each sampling sequence, from its last row."""
        last_rows = plan.row_start[plan.sampling + 1] - 1
        produced = (plan.q_start + plan.q_len)[plan.sampling]  # position of the new token
        sampled: list[SampledTokens] = []
        for tile in self._tiles(len(last_rows)):
            output = self._sampler.sample(
                self._logits(hidden, last_rows[tile]),
                [sequences[index].sampling for index in plan.sampling[tile]],
                produced[tile].tolist(),
            )
            for row, error in enumerate(output.errors):
                if error is None:
                    sampled.append(SampledTokens((int(output.token_ids[row]),), (output.logprobs[row],)))
                else:
                    sampled.append(SampledTokens((), (), error, bool(output.finite[row])))
        return tuple(sampled)

    def _prompt_logprobs(
        self, plan: StepPlan, index: int, sequence: RequestSequence, hidden: Tensor
    ) -> list[TokenLogprobs]:
        """Entries of the prompt tokens behind those rows of this step that are still missing.

        After a preemption the rows of a prompt come by again; what is known already is not computed twice.
        """
        start, length = int(plan.q_start[index]), int(plan.q_len[index])
        missing = sequence.missing_prompt_logprobs
        positions = np.arange(max(start, missing.start), min(start + length, missing.stop))
        rows = positions - start + plan.row_start[index]
        labels = sequence.request.prompt_ids
        top = sequence.request.params.prompt_logprobs or 0
        entries: list[TokenLogprobs] = []
        for tile in self._tiles(len(rows)):
            following = labels[positions[tile] + 1].tolist()
            entries += prompt_logprobs(self._logits(hidden, rows[tile]), following, top)
        return entries

    def _tiles(self, rows: int) -> Iterator[slice]:
        return (slice(start, start + self._tile_rows) for start in range(0, rows, self._tile_rows))

    def _logits(self, hidden: Tensor, rows: NDArray[np.integer]) -> Tensor:
        return self._model.logits(hidden.index_select(0, torch.tensor(rows, dtype=torch.int64)))


def _tensor(array: NDArray[np.int32]) -> Tensor:
    """A copy: the plan's arrays are read-only, which torch cannot express."""
    return torch.tensor(array)
