"""Executes a planned step: arrays to tensors, forward, logits, tokens, drafts. Decides nothing about scheduling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
import torch
from di_cache import CachePool
from di_model.batch import Batch, build_batch
from di_model.model import Model
from di_model.native import NativeModel
from di_scheduler import StepPlan
from di_spec import (
    DraftContext,
    Drafter,
    NonFiniteLogitsError,
    Proposal,
    SampledTokens,
    Sampler,
    TokenLogprobs,
    drawn_tokens,
    prompt_logprobs,
    sample_tokens,
    verify_coupled,
)
from numpy.typing import NDArray
from torch import Tensor

from di_engine.loading import LoadedModel
from di_engine.request import RequestSequence

LOGITS_TILE_BYTES = 64 << 20
"""Logits held at once. Rows do not influence each other, so the size of a tile changes no bit."""


StepRows = Tensor | NDArray[np.int32]
"""What the first half of a step leaves for the second: hidden rows ``[rows, hidden]``, good until the next step; or, of
a step in which every sequence draws one token by its parameters alone, those tokens ``[rows]``, -1 where the logits
are not finite."""


class StepOffer(NamedTuple):
    """What a step offers the scheduler: arguments of ``StepPlan.resolve`` (without ``failed``) and of
    ``Scheduler.commit``, over the sampling sequences of the step. ``failed`` is None where none has."""

    tokens: NDArray[np.int32]
    counts: NDArray[np.int32]
    failed: NDArray[np.bool_] | None
    drafts: NDArray[np.int32] | None = None
    confidences: NDArray[np.float32] | None = None

    @classmethod
    def nothing(cls, count: int) -> StepOffer:
        """Of a step that was not computed: no token for any of its ``count`` sampling sequences."""
        return cls(np.empty(0, np.int32), np.zeros(count, np.int32), np.ones(count, np.bool_))


class StepResult(NamedTuple):
    """What a step computed.

    sampled: one entry for each of ``plan.sampling``.
    tokens: those of ``sampled``, where each of it has one; None: not put together yet.
    proposal: drafts that follow, a row for each of ``plan.sampling``; None without a drafter.
    prompt_logprobs: new entries by index of the sequence in the plan, following those it has.
    not_finite: sequences of the plan, by index, whose prompt rows have logits that are not finite.
    """

    sampled: tuple[SampledTokens, ...]
    proposal: Proposal | None = None
    prompt_logprobs: Mapping[int, Sequence[TokenLogprobs]] = MappingProxyType({})
    not_finite: Mapping[int, str] = MappingProxyType({})
    tokens: NDArray[np.int32] | None = None

    def offer(self) -> StepOffer:
        """The tokens and drafts as arrays."""
        sampled, proposal = self.sampled, self.proposal
        if self.tokens is not None and proposal is None:
            return StepOffer(self.tokens, _ones(len(sampled)), None)
        return StepOffer(
            tokens=np.array([token for each in sampled for token in each.token_ids], np.int32),
            counts=np.array([len(each.token_ids) for each in sampled], np.int32),
            failed=np.array([each.error is not None for each in sampled], np.bool_),
            drafts=None if proposal is None else proposal.tokens,
            confidences=None if proposal is None else proposal.confidences,
        )


class StepRunner(Protocol):
    """Computes a step in two halves. The first needs the tokens of the step before, the second also their commit.

    ``sequences`` are those of the plan, in its order. They are read, not changed.
    """

    def copy(self, plan: StepPlan) -> None:
        """Make the plan's copies, before its rows are computed, and also when it has no rows."""

    def forward(self, plan: StepPlan, sequences: Sequence[RequestSequence]) -> StepRows:
        """Compute the rows of a plan, whose keys and state are in the cache afterwards."""

    def sample(self, plan: StepPlan, sequences: Sequence[RequestSequence], rows: StepRows) -> StepResult:
        """What follows from the rows."""


class ModelRunner:
    """Owns the cache pools and runs steps of a model over them.

    Args:
        loaded: the model.
        drafter: proposes what the next step verifies; None: no speculation.
        logits_tile_bytes: logits held at once.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        drafter: Drafter | None = None,
        *,
        logits_tile_bytes: int = LOGITS_TILE_BYTES,
    ) -> None:
        capacity = loaded.capacity
        self.cache = CachePool(capacity.layout, capacity.num_blocks, capacity.num_slots)
        self._model = loaded.model
        self._native = _bound(loaded, self.cache)
        self._drafter = drafter
        self._sampler = Sampler()
        self._tile_rows = max(1, logits_tile_bytes // (4 * loaded.config.text.vocab_size))

    def copy(self, plan: StepPlan) -> None:
        """Copy blocks and state slots in the cache."""
        if plan.num_copies > 0:
            with torch.inference_mode():
                self.cache.copy_blocks(plan.copy_blocks.tolist())
                self.cache.copy_slots(plan.copy_slots.tolist())

    def forward(self, plan: StepPlan, sequences: Sequence[RequestSequence]) -> StepRows:
        """Compute the plan's rows, and their tokens where nothing else is asked of them."""
        if self._native is None:
            with torch.inference_mode():
                return self._model.forward(self._batch(plan), self.cache).hidden
        parameters = self._drawn_by(plan, sequences)
        if parameters is not None:
            return self._native.draw(*plan.inputs, parameters=parameters)
        return self._native.forward(*plan.inputs).hidden

    def sample(self, plan: StepPlan, sequences: Sequence[RequestSequence], rows: StepRows) -> StepResult:
        """Draw tokens where the plan asks for them, propose drafts, and describe prompt tokens that are due."""
        if not isinstance(rows, Tensor):
            tokens = rows.tolist()
            return StepResult(drawn_tokens(tokens), tokens=None if -1 in tokens else rows)
        entries, not_finite = self._describe_prompts(plan, sequences, rows)
        sampled = self._sample(plan, sequences, rows)
        proposal = None if self._drafter is None else self._propose(self._drafter, plan, sequences, sampled)
        return StepResult(sampled, proposal, entries, not_finite)

    def _drawn_by(self, plan: StepPlan, sequences: Sequence[RequestSequence]) -> bytes | None:
        """Parameters of each row, if the step is nothing but draws of one token a sequence that depend on nothing else:
        the greater part of all steps. None: the tokens are a matter of ``sample``."""
        count = plan.num_rows
        if self._drafter is not None or not len(sequences) == plan.num_sampling == count <= self._tile_rows:
            return None
        packed = []
        for each in sequences:
            if each.prompt_logprobs is not None or not each.sampling.plain:
                return None
            packed.append(each.sampling.packed)
        return b"".join(packed)

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
        """Tokens of each sampling sequence: of a decode from all of its rows, of a prompt from the last one."""
        sampling = plan.sampling
        states = [sequences[index].sampling for index in sampling.tolist()]
        if 0 < len(states) == plan.num_rows <= self._tile_rows:  # a row each: decodes without drafts
            return sample_tokens(self._sampler, self._logits(hidden), states, plan.positions + 1)
        token_ids, positions = plan.token_ids, plan.positions
        counts = np.where(plan.decodes, plan.q_len, 1)[sampling]
        firsts = plan.row_start[sampling + 1] - counts
        sampled: list[SampledTokens] = []
        for part in _parts(counts, self._tile_rows):
            row_start = np.concatenate([[0], np.cumsum(counts[part])])
            rows = np.repeat(firsts[part] - row_start[:-1], counts[part]) + np.arange(row_start[-1])
            drafts = token_ids[np.minimum(rows + 1, len(token_ids) - 1)]
            drafts[row_start[1:] - 1] = -1
            logits, produced = self._logits(hidden, rows), positions[firsts[part]] + 1
            sampled += verify_coupled(self._sampler, logits, states[part], row_start, produced, drafts)
        return tuple(sampled)

    def _propose(
        self,
        drafter: Drafter,
        plan: StepPlan,
        sequences: Sequence[RequestSequence],
        sampled: Sequence[SampledTokens],
    ) -> Proposal:
        """Drafts of the sampling sequences that did not fail; the others have none."""
        width = self.cache.layout.spec.max_draft_tokens
        going = np.array([i for i, each in enumerate(sampled) if each.error is None], dtype=np.int64)
        indices = plan.sampling[going]
        new_tokens = [sampled[i].token_ids for i in going]
        q_start = plan.q_start
        firsts = np.where(plan.decodes, q_start, q_start + plan.q_len - 1)[indices]
        context = DraftContext(
            states=[sequences[index].sampling for index in indices.tolist()],
            new_tokens=new_tokens,
            positions=firsts + np.array([len(tokens) for tokens in new_tokens], dtype=np.int32),
            slots=plan.slots[indices],
            cache=self.cache,
        )
        with torch.inference_mode():
            proposal = drafter.propose(context, width)
        _check_proposal(proposal, len(going), width)
        tokens = np.full((len(sampled), width), -1, dtype=np.int32)
        tokens[going, : proposal.tokens.shape[1]] = proposal.tokens
        if proposal.confidences is None:
            return Proposal(tokens)
        confidences = np.zeros((len(sampled), width), dtype=np.float32)
        confidences[going, : proposal.confidences.shape[1]] = proposal.confidences
        return Proposal(tokens, confidences)

    def _describe_prompts(
        self, plan: StepPlan, sequences: Sequence[RequestSequence], hidden: Tensor
    ) -> tuple[dict[int, list[TokenLogprobs]], dict[int, str]]:
        """What ``StepResult.prompt_logprobs`` and ``StepResult.not_finite`` hold."""
        entries: dict[int, list[TokenLogprobs]] = {}
        not_finite: dict[int, str] = {}
        waiting = [index for index, each in enumerate(sequences) if each.prompt_logprobs is not None]
        if not waiting:  # nearly always, and each array of a plan is made when it is asked for
            return entries, not_finite
        q_start, row_start = plan.q_start.tolist(), plan.row_start.tolist()
        for index in waiting:
            rows = range(row_start[index], row_start[index + 1])
            try:
                entries[index] = self._prompt_logprobs(sequences[index], q_start[index], rows, hidden)
            except NonFiniteLogitsError as error:
                not_finite[index] = str(error)
        return entries, not_finite

    def _prompt_logprobs(
        self, sequence: RequestSequence, start: int, step_rows: range, hidden: Tensor
    ) -> list[TokenLogprobs]:
        """Entries of the prompt tokens behind those rows of a step, from position ``start``, that are still missing.

        After a preemption the rows of a prompt come by again; what is known already is not computed twice.
        """
        missing = sequence.missing_prompt_logprobs
        positions = np.arange(max(start, missing.start), min(start + len(step_rows), missing.stop))
        rows = positions - start + step_rows.start
        labels = sequence.request.prompt_ids
        top = sequence.request.params.prompt_logprobs or 0
        entries: list[TokenLogprobs] = []
        for first in range(0, len(rows), self._tile_rows):
            part = slice(first, first + self._tile_rows)
            following = labels[positions[part] + 1].tolist()
            entries += prompt_logprobs(self._logits(hidden, rows[part]), following, top)
        return entries

    def _logits(self, hidden: Tensor, rows: NDArray[np.integer] | None = None) -> Tensor:
        """Logits of those rows, or of all; the next call overwrites them."""
        if self._native is not None:
            return self._native.logits(hidden, None if rows is None else rows.astype(np.int64, copy=False))
        if rows is not None:
            hidden = hidden.index_select(0, torch.tensor(rows, dtype=torch.int64))
        return self._model.logits(hidden)


def _bound(loaded: LoadedModel, cache: CachePool) -> NativeModel | None:
    """The model and its caches as one native object, where that was asked for and computes the same."""
    model = loaded.model
    if not loaded.native_plan or cache.blocks.device.type != "cpu":
        return None
    # A subclass may compute something else.
    return NativeModel(model, cache) if type(model) is Model else None


def _check_proposal(proposal: object, rows: int, width: int) -> None:
    if not isinstance(proposal, Proposal):
        raise TypeError(f"the drafter's proposal: got {type(proposal).__name__}, allowed: Proposal")
    if len(proposal.tokens) != rows or proposal.tokens.shape[1] > width:
        allowed = f"{rows} rows of at most max_draft_tokens = {width} tokens"
        raise ValueError(
            f"the drafter's proposal: got tokens of shape {proposal.tokens.shape}, allowed: {allowed}"
        )


def _parts(counts: NDArray[np.integer], most: int) -> Iterator[slice]:
    """Runs of neighbours whose counts add up to ``most`` at most, each with at least one."""
    first, total = 0, 0
    for index, count in enumerate(counts.tolist()):
        if total and total + count > most:
            yield slice(first, index)
            first, total = index, 0
        total += count
    if total:
        yield slice(first, len(counts))


@cache
def _ones(count: int) -> NDArray[np.int32]:
    """A token for each: what nearly all steps offer."""
    ones = np.ones(count, np.int32)
    ones.flags.writeable = False
    return ones


def _tensor(array: NDArray[np.int32]) -> Tensor:
    """A copy: the plan's arrays are read-only, which torch cannot express."""
    return torch.tensor(array)
