"""The model as one native object: the bits of the composed model, in its results and in every byte of the caches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from di_cache import CacheLayout, CachePool, SlotMapError
from di_kernels import (
    equal_instruction_sets,
    instruction_set,
    instruction_sets,
    set_instruction_set,
    set_num_threads,
)
from di_kernels.ops import sampling
from di_kernels.ops.linear import LinearWeight
from di_kernels.ops.moe import ExpertWeights
from di_kernels.packing import pack, pack_experts
from di_model.batch import build_batch
from di_model.cache_spec import cache_spec
from di_model.checkpoint import Checkpoint, load_checkpoint
from di_model.engram_tables import derive_engram
from di_model.model import Model, StepOutput
from di_model.native import NativeModel
from di_model.numerics import Numerics
from di_model.parts import ALL_PARTS, EntrySelection, Parts
from di_model.testing import tiny_config, write_checkpoint
from torch import Tensor

IDS = torch.randint(3, 320, (3, 60), generator=torch.Generator().manual_seed(4), dtype=torch.int32)
BLOCK, LOOKBACK, DRAFTS = 16, 2, 5
SCHEDULE: Sequence[Mapping[int, int]] = (
    {0: 9},
    {1: 30, 0: 1},
    {},
    {0: 1, 1: 1, 2: 2},
    {2: 25},
    {0: 6, 1: 1, 2: 1},  # a verify step
    {2: 1},
    {1: 17, 0: 3},
    {0: 1, 2: 6, 1: 1},
)
"""Rows of each sequence, step by step: prompts whole and in chunks, single rows, several, all of it mixed."""

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "every layer role": {},
    "no candidate blocks": {"candidate_source_layer_id": None},
    "no Engram": {"engram_layer_ids": []},
    "one stream": {"hc_mult": 1},
    "a window of the row itself": {"sliding_window": 1},
    "index keys behind their KV source": {"index_k_source_layer_ids": [1, 3, 4]},
    "one selected entry": {"index_topk": 1},
    "more selected than there are": {"index_topk": 100},
    "no limits": dict.fromkeys(("index_topk", "candidate_topk_blocks", "candidate_block_size"), 2**31 - 1),
    "candidate blocks of one entry": {"candidate_topk_blocks": 1, "candidate_block_size": 1},
    "features out of order": {"dspark_target_layer_ids": [5, 1]},
    "no draft model": {"num_nextn_predict_layers": 0, "compress_ratios": [0, 2, 2, 1, 1, 1]},
    "FP8 entries": {"use_fp4_sparse_kv": False},
}
PARTS = {
    "no Engram": Parts(engram=False),
    "recent entries": Parts(selection=EntrySelection.RECENT),
    "window only": Parts(selection=EntrySelection.NONE),
}


class Sequences:
    """Sequences of ``IDS`` in a pool of their own, run by the composed model or by the native one."""

    def __init__(self, model: Model, *, native: bool) -> None:
        draft = model.draft is not None
        spec = cache_spec(
            model.config, model.numerics, block_size=BLOCK, draft=draft, max_draft_tokens=DRAFTS
        )
        count, self.layout = len(IDS), CacheLayout.from_spec(spec)
        width = self.layout.blocks_for(IDS.shape[1])
        self.model = model
        self.pool = CachePool(self.layout, count * width + 1, count + 1, poison=True)
        self.tables = torch.arange(count * width, 0, -1, dtype=torch.int32).view(width, count).T.contiguous()
        self.done = [0] * count
        self.native = NativeModel(model, self.pool) if native else None

    def arrays(self, rows: Mapping[int, int]) -> dict[str, Tensor]:
        which = list(rows)
        context = [
            [int(IDS[i, self.done[i] - 1 - k]) if self.done[i] > k else -1 for k in range(LOOKBACK)]
            for i in which
        ]
        parts = [IDS[i, self.done[i] : self.done[i] + count] for i, count in rows.items()]
        return {
            "tokens": torch.cat(parts) if parts else torch.empty(0, dtype=torch.int32),
            "q_start": torch.tensor([self.done[i] for i in which], dtype=torch.int32),
            "q_len": torch.tensor(list(rows.values()), dtype=torch.int32),
            "slots": torch.tensor([i + 1 for i in which], dtype=torch.int32),
            "block_table": self.tables[which].contiguous(),
            "context": torch.tensor(context, dtype=torch.int32).view(len(which), LOOKBACK),
        }

    def step(self, rows: Mapping[int, int], window_columns: int | None = None) -> tuple[StepOutput, Tensor]:
        """Output and logits of a step."""
        arrays = self.arrays(rows)
        for i, count in rows.items():
            self.done[i] += count
        if self.native is None:
            batch = build_batch(self.layout, **arrays, window_columns=window_columns)
            output = self.model.forward(batch, self.pool)
            return output, self.model.logits(output.hidden)
        arguments = {name: tensor.numpy() for name, tensor in arrays.items()}
        output = self.native.forward(**arguments, window_columns=window_columns)
        return output, self.native.logits(output.hidden, np.arange(len(output.hidden)))


def built(checkpoint: Checkpoint, numerics: Numerics = Numerics.RELEASE, parts: Parts = ALL_PARTS) -> Model:
    engram = derive_engram(checkpoint.config, checkpoint.path)
    return Model(checkpoint.config, checkpoint.weights, engram, numerics, IDS.shape[1] + DRAFTS, parts)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return load_checkpoint(write_checkpoint(tmp_path_factory.mktemp("tiny"), seed=6))


def same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two results are equal in every bit, also where they are NaN."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)
    )


def assert_same_bits(model: Model, *, native: Model | None = None, window_columns: int | None = None) -> None:
    """Of the composed model and of ``native`` (None: the same) bound to native objects."""
    composed, bound = Sequences(model, native=False), Sequences(native or model, native=True)
    for number, rows in enumerate(SCHEDULE):
        expected, logits = composed.step(rows, window_columns)
        found, their_logits = bound.step(rows, window_columns)
        where = f"step {number}"
        assert bool(logits.isfinite().all()), where
        assert same_bits(found.hidden, expected.hidden), where
        assert same_bits(found.features, expected.features), where
        assert same_bits(their_logits, logits), where
        assert torch.equal(bound.pool.slots, composed.pool.slots), where
        assert torch.equal(bound.pool.blocks, composed.pool.blocks), where


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(variant: str, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(write_checkpoint(tmp_path, tiny_config(text=VARIANTS[variant])))
    for numerics in Numerics:
        assert_same_bits(built(checkpoint, numerics))


def test_unquantized_weights(tmp_path: Path) -> None:
    checkpoint = load_checkpoint(write_checkpoint(tmp_path, tiny_config(quantized=False)))
    for numerics in Numerics:
        assert_same_bits(built(checkpoint, numerics))


def packed(part: Any) -> Any:
    """``part`` with every matrix in it packed."""
    if isinstance(part, LinearWeight):
        return pack(part)
    if isinstance(part, ExpertWeights):
        return pack_experts(part)
    if isinstance(part, tuple):
        return tuple(map(packed, part))
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return part
    values = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    return replace(part, **{name: packed(value) for name, value in values.items()})


@pytest.mark.parametrize("quantized", [True, False])
def test_packed_weights(quantized: bool, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(write_checkpoint(tmp_path, tiny_config(quantized=quantized)))
    for numerics in Numerics:
        as_stored = built(checkpoint, numerics)
        model = built(replace(checkpoint, weights=packed(checkpoint.weights)), numerics)
        assert model.weights.head.is_packed
        assert model.weights.layers[0].moe.experts.w1[0].is_packed
        assert_same_bits(as_stored, native=model)


@pytest.mark.parametrize("parts", PARTS)
def test_parts(tiny: Checkpoint, parts: str) -> None:
    assert_same_bits(built(tiny, parts=PARTS[parts]))


def test_without_draft_weights(tiny: Checkpoint) -> None:
    assert_same_bits(built(replace(tiny, weights=replace(tiny.weights, draft=None))))


@pytest.mark.parametrize("columns", [8, 40])
def test_columns_of_window_keys(tiny: Checkpoint, columns: int) -> None:
    assert_same_bits(built(tiny), window_columns=columns)


@contextmanager
def machine(isa: str, threads: int) -> Iterator[None]:
    before = instruction_set()
    set_instruction_set(isa)
    set_num_threads(threads, work_per_thread=1)
    try:
        yield
    finally:
        set_num_threads(1)
        set_instruction_set(before)


@pytest.mark.parametrize("isas", equal_instruction_sets(), ids=lambda names: names[-1])
def test_instruction_sets_and_threads(tiny: Checkpoint, isas: tuple[str, ...]) -> None:
    model, results = built(tiny), []
    for isa in isas:
        for threads in (1, 2):
            with machine(isa, threads):
                sequences = Sequences(model, native=True)
                outputs = [sequences.step(rows)[0].hidden.clone() for rows in SCHEDULE]
                results.append((torch.cat(outputs), sequences.pool))
    for hidden, pool in results[1:]:
        assert same_bits(hidden, results[0][0])
        assert torch.equal(pool.slots, results[0][1].slots)
        assert torch.equal(pool.blocks, results[0][1].blocks)


def test_rows_do_not_depend_on_steps_before_of_other_sizes(tiny: Checkpoint) -> None:
    """The workspace is that of the largest step; what lies behind the rows of a smaller one is not read."""
    model = built(tiny)
    grown, fresh = Sequences(model, native=True), Sequences(model, native=True)
    grown.step({1: 60, 2: 60})
    for rows in ({0: 20}, {0: 1}, {0: 3}):
        assert same_bits(grown.step(rows)[0].hidden, fresh.step(rows)[0].hidden)


def test_a_step_no_larger_than_one_before_takes_no_memory(tmp_path: Path) -> None:
    wide = {"hidden_size": 1024, "num_hidden_layers": 6}
    sequences = Sequences(
        built(load_checkpoint(write_checkpoint(tmp_path, tiny_config(text=wide)))), native=True
    )
    assert sequences.native is not None
    held = []
    for rows in ({0: 1}, {1: 60}, {0: 1}, {0: 40}, {2: 50}, {0: 1, 2: 1}):
        hidden = sequences.step(rows)[0].hidden
        held.append((sequences.native.workspace_bytes, hidden.untyped_storage().data_ptr()))
    assert held[0] < held[1]
    assert len(set(held[2:])) == 1


BAD: list[tuple[type[Exception], str, dict[str, list[Any]]]] = [
    (SlotMapError, "slots is -1", {"slots": [-1]}),
    (SlotMapError, "q_start", {"q_start": [80]}),
    (SlotMapError, "tokens", {"tokens": [3, 4]}),
    (SlotMapError, "context is too short", {"context": [[4]]}),
    (IndexError, "slot .* is 9", {"slots": [9]}),
    (IndexError, "block .* is 77", {"block_table": [[77, 1, 2, 3, 4]]}),
    (IndexError, "end of the positions", {"q_start": [65]}),
]


@pytest.mark.parametrize(("error", "message", "change"), BAD)
def test_a_bad_step_writes_nothing(
    tiny: Checkpoint, error: type[Exception], message: str, change: dict[str, list[Any]]
) -> None:
    sequences = Sequences(built(tiny), native=True)
    sequences.step({0: 9})
    before = sequences.pool.blocks.clone(), sequences.pool.slots.clone()
    good: dict[str, Any] = {
        "tokens": [3],
        "q_start": [9],
        "q_len": [1],
        "slots": [1],
        "block_table": [[1, 2, 3, 4, 5]],
        "context": [[4, 5]],
    }
    arrays = {name: np.array(value, dtype=np.int32) for name, value in {**good, **change}.items()}
    assert sequences.native is not None
    with pytest.raises(error, match=message):
        sequences.native.forward(**arrays)
    with pytest.raises(error, match=message):
        sequences.native.draw(**arrays, parameters=records(len(arrays["tokens"])))
    assert torch.equal(sequences.pool.blocks, before[0])
    assert torch.equal(sequences.pool.slots, before[1])


def test_too_few_columns_for_the_window_write_nothing(tiny: Checkpoint) -> None:
    sequences = Sequences(built(tiny), native=True)
    sequences.step({0: 9})
    before = sequences.pool.blocks.clone(), sequences.pool.slots.clone()
    with pytest.raises(IndexError, match="number of window keys of row 0 is 8; allowed: 0 to 7"):
        sequences.step({0: 1}, window_columns=7)
    assert torch.equal(sequences.pool.blocks, before[0])
    assert torch.equal(sequences.pool.slots, before[1])


def records(count: int) -> bytes:
    """Sampling parameters of every kind: a greedy row, then free, filtered and hot ones, in turn."""
    kinds = [(0, 1, 0, 0), (1, 1, 0, 0), (0.7, 0.9, 0.05, 5), (3, 1, 0, 0)]
    rows = [(*kinds[i % len(kinds)], 2**63 + i) for i in range(count)]
    return np.array(rows, dtype=sampling.PARAMETERS).tobytes()


@pytest.mark.parametrize("draft", [True, False])
def test_tokens_drawn_in_the_same_call(tiny: Checkpoint, draft: bool) -> None:
    model = built(tiny if draft else replace(tiny, weights=replace(tiny.weights, draft=None)))
    for isa in instruction_sets():
        for threads in (1, 2):
            with machine(isa, threads):
                apart, together = Sequences(model, native=True), Sequences(model, native=True)
                assert together.native is not None
                for rows in SCHEDULE:
                    positions = [apart.done[i] + k + 1 for i, count in rows.items() for k in range(count)]
                    given = records(len(positions))
                    arrays = {name: tensor.numpy() for name, tensor in together.arrays(rows).items()}
                    together.done = [count + rows.get(i, 0) for i, count in enumerate(together.done)]
                    drawn = together.native.draw(**arrays, parameters=given)
                    packed = torch.tensor([*given], dtype=torch.uint8).view(-1, sampling.PARAMETERS.itemsize)
                    where = torch.tensor(positions, dtype=torch.int64)
                    expected, _ = sampling.choose(apart.step(rows)[1], packed, where)
                    assert drawn.dtype == np.int32
                    assert drawn.tolist() == expected.tolist()
                    assert torch.equal(together.pool.slots, apart.pool.slots)
                    assert torch.equal(together.pool.blocks, apart.pool.blocks)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_draws_nothing(tiny: Checkpoint, bad: float) -> None:
    embed = tiny.weights.embed.clone()
    embed[4, 0] = bad
    model = built(replace(tiny, weights=replace(tiny.weights, embed=embed)))
    sequences = Sequences(model, native=True)
    assert sequences.native is not None
    arrays = sequences.arrays({0: 2, 1: 1})
    arrays["tokens"] = torch.tensor([5, 4, 6], dtype=torch.int32)
    drawn = sequences.native.draw(**arrays, parameters=records(3)).tolist()
    assert [token == -1 for token in drawn] == [False, True, False]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (records(2), "one record a row"),
        (b"", "one record a row"),
        (np.array([(-1, 1, 0, 0, 0)], dtype=sampling.PARAMETERS).tobytes(), "temperature"),
    ],
)
def test_parameters_that_draw_nothing_write_nothing(
    tiny: Checkpoint, parameters: bytes, message: str
) -> None:
    sequences = Sequences(built(tiny), native=True)
    assert sequences.native is not None
    before = sequences.pool.slots.clone()
    with pytest.raises(sampling.SamplingParametersError, match=message):
        sequences.native.draw(**sequences.arrays({0: 1}), parameters=parameters)
    assert torch.equal(sequences.pool.slots, before)


def test_logits_of_all_rows_and_of_some(tiny: Checkpoint) -> None:
    sequences = Sequences(built(tiny), native=True)
    output, _ = sequences.step({0: 7, 1: 4})
    assert sequences.native is not None
    every = sequences.native.logits(output.hidden).clone()
    for rows in ([], [10], [3, 0, 3]):
        some = sequences.native.logits(output.hidden, np.array(rows, dtype=np.int64))
        assert same_bits(some, every[rows])


def test_logits_of_rows_that_are_not_there(tiny: Checkpoint) -> None:
    sequences = Sequences(built(tiny), native=True)
    output, _ = sequences.step({0: 3})
    assert sequences.native is not None
    for row in (-1, 3):
        with pytest.raises(IndexError, match=f"is {row}; allowed: 0 to 2"):
            sequences.native.logits(output.hidden, np.array([0, row]))


def test_caches_must_fit_the_model(tiny: Checkpoint) -> None:
    model = built(tiny)
    spec = cache_spec(model.config, model.numerics, block_size=BLOCK, draft=False)
    with pytest.raises(ValueError, match="caches of some layers are missing"):
        NativeModel(model, CachePool(CacheLayout.from_spec(spec), 4, 3))
    other = replace(cache_spec(model.config, model.numerics, block_size=BLOCK), head_dim=64)
    with pytest.raises(ValueError, match="head_dim has a dimension of 64, expected 32"):
        NativeModel(model, CachePool(CacheLayout.from_spec(other), 4, 3))


def test_a_weight_of_another_shape_is_named(tiny: Checkpoint) -> None:
    layers = list(tiny.weights.layers)
    attention = replace(layers[2].attn, wq_b=LinearWeight.dense(torch.zeros(3, 32)))
    layers[2] = replace(layers[2], attn=attention)
    model = built(replace(tiny, weights=replace(tiny.weights, layers=tuple(layers))))
    with pytest.raises(ValueError, match=r"spec.layers\[2\].attention.wq_b.weight has a dimension of 3"):
        Sequences(model, native=True)
