"""The cached model over paged caches against the reference, on small random checkpoints of many kinds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from di_cache import CacheLayout, CachePool
from di_model.batch import Batch, build_batch
from di_model.cache_spec import cache_spec
from di_model.checkpoint import Checkpoint, load_checkpoint
from di_model.engram_tables import derive_engram
from di_model.model import Model, StepOutput
from di_model.numerics import Numerics
from di_model.reference import ReferenceModel
from di_model.testing import tiny_config, write_checkpoint
from di_model.trace import Trace, Traced
from torch import Tensor

IDS = torch.randint(3, 320, (2, 41), generator=torch.Generator().manual_seed(4), dtype=torch.int32)
BLOCK = 16
LOOKBACK = 2
TOLERANCE = 2e-4

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "every layer role": {},
    "no candidate blocks": {"candidate_source_layer_id": None},
    "no Engram": {"engram_layer_ids": []},
    "one stream": {"hc_mult": 1},
    "a window of the row itself": {"sliding_window": 1},
    "index keys behind their KV source": {"index_k_source_layer_ids": [1, 3, 4]},
    "one selected entry": {"index_topk": 1},
    "more selected than there are": {"index_topk": 100},
    "candidate blocks of one entry": {"candidate_topk_blocks": 1, "candidate_block_size": 1},
    "features out of order": {"dspark_target_layer_ids": [5, 1]},
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return load_checkpoint(write_checkpoint(tmp_path_factory.mktemp("tiny"), seed=6))


def cached(checkpoint: Checkpoint, numerics: Numerics) -> Model:
    engram = derive_engram(checkpoint.config, checkpoint.path)
    return Model(checkpoint.config, checkpoint.weights, engram, numerics, IDS.shape[1] + 5)


def reference(checkpoint: Checkpoint, numerics: Numerics) -> ReferenceModel:
    engram = derive_engram(checkpoint.config, checkpoint.path)
    return ReferenceModel(checkpoint.config, checkpoint.weights, engram, numerics)


class Sequences:
    """Sequences ``IDS[i]`` with slots and blocks of their own in one poisoned pool."""

    def __init__(self, model: Model) -> None:
        self.model, count = model, len(IDS)
        self.layout = CacheLayout.from_spec(cache_spec(model.config, model.numerics, block_size=BLOCK))
        width = self.layout.blocks_for(IDS.shape[1])
        self.pool = CachePool(self.layout, count * width + 1, count + 1, poison=True)
        self.tables = torch.arange(count * width, 0, -1, dtype=torch.int32).view(width, count).T
        self.done = [0] * count

    def batch(self, rows: Mapping[int, int]) -> Batch:
        """The next ``rows[i]`` tokens of each sequence ``i``."""
        which = list(rows)
        context = [
            [int(IDS[i, self.done[i] - 1 - k]) if self.done[i] > k else -1 for k in range(LOOKBACK)]
            for i in which
        ]
        parts = [IDS[i, self.done[i] : self.done[i] + count] for i, count in rows.items()]
        return build_batch(
            self.layout,
            tokens=torch.cat(parts) if parts else torch.empty(0, dtype=torch.int32),
            q_start=torch.tensor([self.done[i] for i in which], dtype=torch.int32),
            q_len=torch.tensor(list(rows.values()), dtype=torch.int32),
            slots=torch.tensor([i + 1 for i in which], dtype=torch.int32),
            block_table=self.tables[which].contiguous(),
            context=torch.tensor(context, dtype=torch.int32).view(len(which), LOOKBACK),
        )

    def step(self, rows: Mapping[int, int], trace: Trace | None = None) -> StepOutput:
        output = self.model.forward(self.batch(rows), self.pool, trace)
        for i, count in rows.items():
            self.done[i] += count
        return output

    def alone(self, i: int, chunk: int, trace: Trace | None = None) -> tuple[Tensor, Tensor]:
        """Logits and features of all of sequence ``i`` in chunks."""
        outputs = [
            self.step({i: min(chunk, IDS.shape[1] - start)}, trace) for start in range(0, IDS.shape[1], chunk)
        ]
        features = [output.features for output in outputs if output.features is not None]
        return self.model.logits(torch.cat([output.hidden for output in outputs])), torch.cat(features)


@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_follows_the_reference(variant: str, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(write_checkpoint(tmp_path, tiny_config(text=VARIANTS[variant])))
    expected, theirs = Trace(), Trace()
    output = reference(checkpoint, Numerics.FLOAT32).forward(IDS[0], expected)
    logits, features = Sequences(cached(checkpoint, Numerics.FLOAT32)).alone(0, 7, theirs)
    assert torch.allclose(logits, output.logits, atol=TOLERANCE, rtol=0)
    assert torch.allclose(features, output.features, atol=TOLERANCE, rtol=0)
    for name in (Traced.TOPK, Traced.CANDIDATES, Traced.MOE_EXPERT, Traced.ENGRAM_IDS):
        assert expected.layers(name) == theirs.layers(name)
        for layer in expected.layers(name):
            assert torch.equal(theirs.get(name, layer), expected.get(name, layer)), (name, layer)


@pytest.mark.parametrize("numerics", list(Numerics))
def test_bits_do_not_depend_on_chunks_and_neighbours(tiny: Checkpoint, numerics: Numerics) -> None:
    model = cached(tiny, numerics)
    expected = [Sequences(model).alone(i, IDS.shape[1]) for i in range(2)]
    for chunk in (1, 7, 16):
        logits, features = Sequences(model).alone(0, chunk)
        assert torch.equal(logits, expected[0][0])
        assert torch.equal(features, expected[0][1])

    together, rows = Sequences(model), ({1: 5}, {0: 9, 1: 1}, {1: 20, 0: 1}, {0: 31}, {1: 15})
    logits = torch.cat([model.logits(together.step(step).hidden) for step in rows])
    order = torch.cat([torch.full((count,), i) for step in rows for i, count in step.items()])
    for i in range(2):
        assert torch.equal(logits[order == i], expected[i][0])


def test_limits_beyond_what_there_is_cost_nothing(tmp_path: Path) -> None:
    """A configuration may allow any number of selected entries; memory follows the entries there are."""
    logits = []
    for limit in (64, 2**31 - 1):
        limits = {"index_topk": limit, "candidate_topk_blocks": limit, "candidate_block_size": limit}
        config = tiny_config(text=limits)
        model = cached(load_checkpoint(write_checkpoint(tmp_path / str(limit), config)), Numerics.RELEASE)
        logits.append(Sequences(model).alone(0, 7)[0])
    assert torch.equal(*logits)


def test_a_step_without_rows_changes_nothing(tiny: Checkpoint) -> None:
    model = cached(tiny, Numerics.RELEASE)
    sequences = Sequences(model)
    first = sequences.step({0: 9})
    empty = sequences.step({})
    assert model.logits(empty.hidden).shape == (0, tiny.config.text.vocab_size)
    again = sequences.step({0: IDS.shape[1] - 9})
    logits = model.logits(torch.cat([first.hidden, again.hidden]))
    assert torch.equal(logits, Sequences(model).alone(0, 41)[0])


def test_drafts_follow_the_reference_and_change_no_state(tiny: Checkpoint) -> None:
    model, oracle = cached(tiny, Numerics.FLOAT32), reference(tiny, Numerics.FLOAT32)
    assert model.draft is not None
    features = oracle.forward(IDS[0]).features
    sequences = Sequences(model)
    for position in (1, 7, 8, 9, 30):
        sequences.step({0: position - sequences.done[0]})
        token = IDS[0, position : position + 1]
        at, slot = torch.tensor([position], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
        block = model.draft.forward(token, at, slot, sequences.pool, 4)
        expected = oracle.draft(features, int(token), position, 4)
        for i, previous in enumerate([token, *expected.tokens[:-1, None]]):
            row = model.draft.markov_logits(block.logits[:, i], previous)
            confidence = model.draft.confidence(block.hidden[:, i], previous)
            assert torch.allclose(row[0], expected.logits[i], atol=TOLERANCE, rtol=0)
            assert torch.allclose(confidence[0], expected.confidence[i], atol=TOLERANCE, rtol=0)
    rest = sequences.step({0: IDS.shape[1] - 30})
    assert torch.equal(model.logits(rest.hidden), Sequences(model).alone(0, 41)[0][30:])


def test_no_sequence_drafts_nothing(tiny: Checkpoint) -> None:
    model = cached(tiny, Numerics.RELEASE)
    assert model.draft is not None
    none = torch.empty(0, dtype=torch.int32)
    block = model.draft.forward(none, none, none, Sequences(model).pool, 3)
    assert block.hidden.shape == (0, 3, tiny.config.text.hidden_size)
    assert block.logits.shape == (0, 3, tiny.config.text.vocab_size)


def test_an_engram_model_needs_its_tables(tiny: Checkpoint) -> None:
    with pytest.raises(ValueError, match="engram is None"):
        Model(tiny.config, tiny.weights, None, Numerics.RELEASE, 8)
