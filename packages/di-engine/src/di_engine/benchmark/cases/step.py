"""The rest of a step: norms, rotary embedding, hyper-connections, routing, Engram, embedding, formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from di_kernels.ops.embedding import embed
from di_kernels.ops.engram import EngramTable, engram_gather, engram_inject
from di_kernels.ops.formats import EntryFormat, encode_records
from di_kernels.ops.hyper import (
    HyperConstants,
    HyperEntryWeights,
    HyperMixes,
    hyper_enter,
    hyper_mixes,
    hyper_post,
    hyper_post_combined,
)
from di_kernels.ops.moe import route
from di_kernels.ops.norm import rms_norm
from di_kernels.ops.rope import apply_rope, rope_frequencies, rope_table
from torch import Tensor

from di_engine.benchmark.measure import Case, Recipe, as_bytes
from di_engine.benchmark.random_weights import RandomBytes
from di_engine.benchmark.release import TEXT
from di_engine.benchmark.work import Work

ROWS = (1, 16)
MEMBERS = 4
HIDDEN, STREAMS, HEADS, DIM = TEXT["hidden_size"], 4, TEXT["num_attention_heads"], TEXT["head_dim"]
EXPERTS, TOP_K = TEXT["n_routed_experts"], TEXT["num_experts_per_tok"]
MIXES = STREAMS * (STREAMS + 2)
CONSTANTS = HyperConstants(1e-20, 1e-6, 20)
ENGRAM_DIM = TEXT["engram_head_dim"]
ENGRAM_COLUMNS = (TEXT["engram_max_ngram_size"] - 1) * TEXT["engram_n_heads"]
TABLE_ROWS = 1 << 19
"""Of an Engram table here: 138 MB, so that its rows are read from memory."""

Made = tuple[Sequence[Callable[[], object]], Sequence[tuple[Tensor, ...]]]
"""Calls, and the tensors that each of them reads."""


def step_cases() -> Iterator[Recipe]:
    """Recipes of the cases. Bytes are those of all inputs, here also activations; of tables those of the rows that an
    operation reads."""
    makers: tuple[tuple[str, Callable[[RandomBytes, int], Made]], ...] = (
        ("rms_norm", _norm),
        ("rope of queries", _rope),
        ("mHC mixes, 20 Sinkhorn steps", _mixes),
        ("mHC enter: mixes, pre, norm, MXFP8", _enter),
        ("mHC post", _post),
        (f"{TOP_K} experts and mHC post", _combine),
        (f"route, top {TOP_K} of {EXPERTS}", _route),
        ("FP8 records", _records),
        (f"Engram gather, {ENGRAM_COLUMNS} rows", _gather),
        ("Engram gate and add", _inject),
        ("embedding", _embed),
    )
    for name, make in makers:
        for rows in ROWS:
            yield Recipe(f"{name}, rows {rows}", partial(_case, name, make, rows))


def _case(name: str, make: Callable[[RandomBytes, int], Made], rows: int) -> Case:
    calls, tensors = make(RandomBytes(), rows)
    buffers = tuple(as_bytes(*each) for each in tensors)
    return Case(
        family="step",
        name=name,
        size=f"hidden {HIDDEN}",
        rows=rows,
        work=Work(sum(buffer.numel() for each in buffers for buffer in each) // len(buffers)),
        members=tuple(calls),
        buffers=buffers,
    )


def _norm(random: RandomBytes, rows: int) -> Made:
    weight = random.values(HIDDEN)
    inputs = [random.values(rows, HIDDEN) for _ in range(MEMBERS)]
    return [partial(rms_norm, x, weight, 1e-20) for x in inputs], [(x, weight) for x in inputs]


def _rope(random: RandomBytes, rows: int) -> Made:
    table = rope_table(rope_frequencies(TEXT["qk_rope_head_dim"], 1e4), 1024)
    positions = torch.arange(rows, dtype=torch.int32)
    inputs = [random.values(rows, HEADS, DIM) for _ in range(MEMBERS)]
    return (
        [partial(apply_rope, x, positions, table) for x in inputs],
        [(x, positions, table[:rows]) for x in inputs],
    )


def _mixes(random: RandomBytes, rows: int) -> Made:
    stream = random.values(rows, STREAMS, HIDDEN)
    base, scale = _base_and_scale(random)
    matrices = _projections(random)
    return (
        [partial(hyper_mixes, stream, fn, base, scale, CONSTANTS) for fn in matrices],
        [(fn, stream, base, scale) for fn in matrices],
    )


def _enter(random: RandomBytes, rows: int) -> Made:
    stream, pre = random.values(rows, STREAMS, HIDDEN), random.values(rows, STREAMS, dtype=torch.float32)
    base, scale = _base_and_scale(random)
    norm = random.values(HIDDEN)
    matrices = _projections(random)
    entries = [HyperEntryWeights(fn, base, scale, norm) for fn in matrices]
    return (
        [partial(hyper_enter, stream, pre, weights, CONSTANTS, quantize=True) for weights in entries],
        [(fn, stream, pre, base, scale, norm) for fn in matrices],
    )


def _base_and_scale(random: RandomBytes) -> tuple[Tensor, Tensor]:
    return random.values(MIXES, dtype=torch.float32), torch.ones(3)


def _projections(random: RandomBytes) -> list[Tensor]:
    """126 MB of them: each layer has two of its own."""
    shape = (MIXES, STREAMS * HIDDEN)
    first = random.values(*shape, std=shape[1] ** -0.5, dtype=torch.float32)
    return [first, *(first.clone() for _ in range(63))]


def _combine(random: RandomBytes, rows: int) -> Made:
    streams, mixes = _streams_and_mixes(random, rows)
    shared, routed = random.values(rows, HIDDEN), random.values(rows, TOP_K, HIDDEN)
    return (
        [partial(hyper_post_combined, stream, shared, routed, mixes) for stream in streams],
        [(stream, shared, routed, mixes.post, mixes.comb) for stream in streams],
    )


def _post(random: RandomBytes, rows: int) -> Made:
    streams, mixes = _streams_and_mixes(random, rows)
    y = random.values(rows, HIDDEN)
    return (
        [partial(hyper_post, stream, y, mixes) for stream in streams],
        [(stream, y, mixes.post, mixes.comb) for stream in streams],
    )


def _streams_and_mixes(random: RandomBytes, rows: int) -> tuple[list[Tensor], HyperMixes]:
    """Trunks, and coefficients that all of them are mixed by."""
    fn = random.values(MIXES, STREAMS * HIDDEN, std=0.01, dtype=torch.float32)
    streams = [random.values(rows, STREAMS, HIDDEN) for _ in range(MEMBERS)]
    return streams, hyper_mixes(streams[0], fn, *_base_and_scale(random), CONSTANTS)


def _route(random: RandomBytes, rows: int) -> Made:
    bias = random.values(EXPERTS, dtype=torch.float32)
    logits = [random.values(rows, EXPERTS, dtype=torch.float32) for _ in range(MEMBERS)]
    return [partial(route, x, bias, TOP_K, 2.5) for x in logits], [(x, bias) for x in logits]


def _records(random: RandomBytes, rows: int) -> Made:
    inputs = [random.values(rows, DIM) for _ in range(MEMBERS)]
    return [partial(encode_records, x, EntryFormat.FP8) for x in inputs], [(x,) for x in inputs]


def _gather(random: RandomBytes, rows: int) -> Made:
    table = EngramTable(
        random.fp8(TABLE_ROWS, ENGRAM_DIM).data,
        torch.full((TABLE_ROWS, ENGRAM_DIM // 32), 120, dtype=torch.uint8),
    )
    assert table.scale is not None
    generator = torch.Generator().manual_seed(0)
    shape = (rows, ENGRAM_COLUMNS)
    ids = [torch.randint(0, TABLE_ROWS, shape, generator=generator) for _ in range(256)]
    # Rows lie anywhere; the ceiling is a plain read of as many bytes.
    read = [(table.data[: each.numel()], table.scale[: each.numel()], each) for each in ids[:MEMBERS]]
    return [partial(engram_gather, each, table, torch.bfloat16) for each in ids], read


def _inject(random: RandomBytes, rows: int) -> Made:
    streams = [random.values(rows, STREAMS, HIDDEN) for _ in range(MEMBERS)]
    kv = random.values(rows, (STREAMS + 1) * HIDDEN)
    q, k = (random.values(STREAMS, HIDDEN) for _ in range(2))
    active = torch.ones(rows, dtype=torch.bool)
    return (
        [partial(engram_inject, stream, kv, q, k, 1e-20, active) for stream in streams],
        [(stream, kv, q, k, active) for stream in streams],
    )


def _embed(random: RandomBytes, rows: int) -> Made:
    table = random.values(16384, HIDDEN)
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(0, len(table), (rows,), generator=generator, dtype=torch.int32) for _ in range(64)]
    return [partial(embed, each, table, torch.bfloat16) for each in ids], [(table[:rows], ids[0])]
