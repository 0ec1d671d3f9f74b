"""Switching a part off takes away that part and nothing else, and keeps rows independent of their step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from di_cache import CacheLayout, CachePool
from di_model.batch import build_batch
from di_model.cache_spec import cache_spec
from di_model.checkpoint import Checkpoint, load_checkpoint
from di_model.engram_tables import derive_engram
from di_model.model import Model
from di_model.numerics import Numerics
from di_model.parts import ALL_PARTS, EntrySelection, Parts
from di_model.testing import tiny_config, write_checkpoint
from torch import Tensor

TOKENS = 41
IDS = torch.randint(3, 320, (TOKENS,), generator=torch.Generator().manual_seed(4), dtype=torch.int32)
WINDOW_ONLY = Parts(selection=EntrySelection.NONE)
RECENT = Parts(selection=EntrySelection.RECENT)
SMALL = {"sliding_window": 4, "index_topk": 3, "engram_layer_ids": []}
"""Seven layers of four tokens see less than the sequence; Engram would carry tokens further."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return load_checkpoint(write_checkpoint(tmp_path_factory.mktemp("tiny"), seed=6))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return load_checkpoint(
        write_checkpoint(tmp_path_factory.mktemp("small"), tiny_config(text=SMALL), seed=6)
    )


def logits(
    checkpoint: Checkpoint,
    parts: Parts,
    ids: Tensor = IDS,
    chunk: int = TOKENS,
    numerics: Numerics = Numerics.RELEASE,
) -> Tensor:
    engram = derive_engram(checkpoint.config, checkpoint.path)
    model = Model(checkpoint.config, checkpoint.weights, engram, numerics, TOKENS + 5, parts)
    layout = CacheLayout.from_spec(cache_spec(model.config, numerics, block_size=16))
    pool = CachePool(layout, 4, 2, poison=True)
    rows = []
    for start in range(0, TOKENS, chunk):
        context = [int(ids[start - k]) if start >= k else -1 for k in (1, 2)]
        batch = build_batch(
            layout,
            tokens=ids[start : start + chunk],
            q_start=torch.tensor([start], dtype=torch.int32),
            q_len=torch.tensor([min(chunk, TOKENS - start)], dtype=torch.int32),
            slots=torch.tensor([1], dtype=torch.int32),
            block_table=torch.tensor([[3, 2, 1]], dtype=torch.int32),
            context=torch.tensor([context], dtype=torch.int32),
        )
        rows.append(model.logits(model.forward(batch, pool).hidden))
    return torch.cat(rows)


@pytest.mark.parametrize("parts", [Parts(engram=False), RECENT, WINDOW_ONLY])
def test_bits_do_not_depend_on_chunks(tiny: Checkpoint, parts: Parts) -> None:
    expected = logits(tiny, parts)
    assert not torch.equal(expected, logits(tiny, ALL_PARTS))
    assert torch.equal(expected, logits(tiny, parts, chunk=7))


def test_without_engram_is_the_model_without_engram_weights(tiny: Checkpoint) -> None:
    layers = tuple(replace(layer, engram=None) for layer in tiny.weights.layers)
    bare = replace(tiny, weights=replace(tiny.weights, layers=layers))
    assert torch.equal(logits(tiny, Parts(engram=False)), logits(bare, ALL_PARTS))


def test_all_entries_are_the_same_whoever_selects_them(tmp_path: Path) -> None:
    wide = {"index_topk": 64, "candidate_topk_blocks": 64}
    checkpoint = load_checkpoint(write_checkpoint(tmp_path, tiny_config(text=wide)))
    selected = logits(checkpoint, ALL_PARTS, numerics=Numerics.FLOAT32)
    recent = logits(checkpoint, RECENT, numerics=Numerics.FLOAT32)
    assert torch.allclose(selected, recent, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("parts", "seen"), [(ALL_PARTS, True), (RECENT, False), (WINDOW_ONLY, False)])
def test_the_first_tokens_are_out_of_reach_without_the_indexer(
    small: Checkpoint, parts: Parts, seen: bool
) -> None:
    other = IDS.clone()
    other[0] += 1
    last, changed = (logits(small, parts, ids)[-1] for ids in (IDS, other))
    assert torch.equal(last, changed) is not seen
