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
ENGRAM_DIM = TEXT["engram_head_dim"]
ENGRAM_COLUMNS = (TEXT["engram_max_ngram_size"] - 1) * TEXT["engram_n_heads"]
TABLE_ROWS = 1 << 19
"""Of an Engram table here: 138 MB, so that its rows are read from memory."""

Made = tuple[Sequence[Callable[[], object]], Sequence[tuple[Tensor, ...]]]
"""Calls, and the tensors that each of them reads."""


def step_cases() -> Iterator[Recipe]:
    """Recipes of the cases. Bytes are those of all inputs: here activations are what an operation reads."""
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
    return [partial(apply_rope, x, positions, table) for x in inputs], [(x,) for x in inputs]


def _mixes(random: RandomBytes, rows: int) -> Made:
    count = STREAMS * (STREAMS + 2)
    stream = random.values(rows, STREAMS, HIDDEN)
    base, scale = random.values(count, dtype=torch.float32), torch.ones(3)
    constants = HyperConstants(1e-20, 1e-6, 20)
    matrices = _projections(random)
    return (
        [partial(hyper_mixes, stream, fn, base, scale, constants) for fn in matrices],
        [(fn,) for fn in matrices],
    )


def _enter(random: RandomBytes, rows: int) -> Made:
    count = STREAMS * (STREAMS + 2)
    stream, pre = random.values(rows, STREAMS, HIDDEN), random.values(rows, STREAMS, dtype=torch.float32)
    base, scale, norm = random.values(count, dtype=torch.float32), torch.ones(3), random.values(HIDDEN)
    constants = HyperConstants(1e-20, 1e-6, 20)
    entries = [HyperEntryWeights(fn, base, scale, norm) for fn in _projections(random)]
    return (
        [partial(hyper_enter, stream, pre, weights, constants, quantize=True) for weights in entries],
        [(weights.fn,) for weights in entries],
    )


def _projections(random: RandomBytes) -> list[Tensor]:
    """126 MB of them: each layer has two of its own."""
    shape = (STREAMS * (STREAMS + 2), STREAMS * HIDDEN)
    first = random.values(*shape, std=shape[1] ** -0.5, dtype=torch.float32)
    return [first, *(first.clone() for _ in range(63))]


def _combine(random: RandomBytes, rows: int) -> Made:
    count = STREAMS * (STREAMS + 2)
    fn = random.values(count, STREAMS * HIDDEN, std=0.01, dtype=torch.float32)
    streams = [random.values(rows, STREAMS, HIDDEN) for _ in range(MEMBERS)]
    shared, routed = random.values(rows, HIDDEN), random.values(rows, TOP_K, HIDDEN)
    base = random.values(count, dtype=torch.float32)
    mixes = hyper_mixes(streams[0], fn, base, torch.ones(3), HyperConstants(1e-20, 1e-6, 20))
    return (
        [partial(hyper_post_combined, stream, shared, routed, mixes) for stream in streams],
        [(stream, shared, routed) for stream in streams],
    )


def _post(random: RandomBytes, rows: int) -> Made:
    count = STREAMS * (STREAMS + 2)
    fn = random.values(count, STREAMS * HIDDEN, std=0.01, dtype=torch.float32)
    streams = [random.values(rows, STREAMS, HIDDEN) for _ in range(MEMBERS)]
    y = random.values(rows, HIDDEN)
    base = random.values(count, dtype=torch.float32)
    mixes = hyper_mixes(streams[0], fn, base, torch.ones(3), HyperConstants(1e-20, 1e-6, 20))
    return [partial(hyper_post, stream, y, mixes) for stream in streams], [(stream, y) for stream in streams]


def _route(random: RandomBytes, rows: int) -> Made:
    bias = random.values(EXPERTS, dtype=torch.float32)
    logits = [random.values(rows, EXPERTS, dtype=torch.float32) for _ in range(MEMBERS)]
    return [partial(route, x, bias, TOP_K, 2.5) for x in logits], [(x,) for x in logits]


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
    read = [(table.data[: each.numel()], table.scale[: each.numel()]) for each in ids[:MEMBERS]]
    return [partial(engram_gather, each, table, torch.bfloat16) for each in ids], read


def _inject(random: RandomBytes, rows: int) -> Made:
    streams = [random.values(rows, STREAMS, HIDDEN) for _ in range(MEMBERS)]
    kv = random.values(rows, (STREAMS + 1) * HIDDEN)
    q, k = (random.values(STREAMS, HIDDEN) for _ in range(2))
    active = torch.ones(rows, dtype=torch.bool)
    return (
        [partial(engram_inject, stream, kv, q, k, 1e-20, active) for stream in streams],
        [(stream, kv) for stream in streams],
    )


def _embed(random: RandomBytes, rows: int) -> Made:
    table = random.values(16384, HIDDEN)
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(0, len(table), (rows,), generator=generator, dtype=torch.int32) for _ in range(64)]
    return [partial(embed, each, table, torch.bfloat16) for each in ids], [(table[:rows],)]
