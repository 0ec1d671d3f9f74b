"""Top-k of both shapes that a step has, candidate blocks, and what turns logits into a token."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from di_kernels.ops.indexer import candidate_blocks
from di_kernels.ops.sampling import apply_bitmask, argmax, choose, describe_tokens, pack_parameters
from di_kernels.ops.topk import topk_indices
from torch import Tensor

from di_engine.benchmark.measure import Case, Peer, Recipe, as_bytes
from di_engine.benchmark.release import TEXT
from di_engine.benchmark.work import Work

MEMBERS = 4
VOCABULARY = TEXT["vocab_size"]
SHAPES = ((100_000, 512, torch.bfloat16), (1_000_000, 512, torch.bfloat16), (VOCABULARY, 4096, torch.float32))
"""Scores, how many of them are kept, and the numbers that the scores are: bfloat16 ones have many equals."""


def selection_cases() -> Iterator[Recipe]:
    """Recipes of the cases."""
    for count, k, dtype in SHAPES:
        yield Recipe(f"top {k} of {count}", partial(_topk, count, k, dtype))
    yield Recipe("candidate blocks", partial(_candidates, 1_000_000))


def sampling_cases() -> Iterator[Recipe]:
    """Recipes of the cases."""
    yield Recipe("greedy", _argmax)
    for rows in (1, 16):
        yield Recipe(f"bitmask, rows {rows}", partial(_bitmask, rows))
    for rows in (1, 16):
        yield Recipe(f"sample, rows {rows}", partial(_sample, rows))
    yield Recipe("logprobs", _logprobs)


def _topk(count: int, k: int, dtype: torch.dtype) -> Case:
    scores = [values.to(dtype) for values in _logits(MEMBERS, 1, count)]
    lengths = torch.full((1,), count, dtype=torch.int32)
    return Case(
        family="top-k",
        name=f"top {k} of {'bfloat16' if dtype is torch.bfloat16 else 'float32'} scores",
        size=str(count),
        rows=1,
        work=Work(scores[0].nbytes),
        members=tuple(partial(topk_indices, values, k, lengths) for values in scores),
        buffers=tuple(map(as_bytes, scores)),
        peer=Peer("torch.topk", tuple(partial(torch.topk, values, k) for values in scores), scores[0].nbytes),
    )


def _candidates(count: int) -> Case:
    scores = _logits(MEMBERS, 1, count)
    visible = torch.full((1,), count, dtype=torch.int32)
    size, blocks = TEXT["candidate_block_size"], TEXT["candidate_topk_blocks"]
    return Case(
        family="top-k",
        name=f"{blocks} candidate blocks",
        size=str(count),
        rows=1,
        work=Work(4 * count),
        members=tuple(partial(candidate_blocks, values, visible, size, blocks) for values in scores),
        buffers=tuple(map(as_bytes, scores)),
    )


def _argmax() -> Case:
    logits = _logits(MEMBERS, 1, VOCABULARY)
    return Case(
        family="sampling",
        name="greedy",
        size=str(VOCABULARY),
        rows=1,
        work=Work(4 * VOCABULARY),
        members=tuple(partial(argmax, values) for values in logits),
        buffers=tuple(map(as_bytes, logits)),
        peer=Peer(
            "torch.argmax", tuple(partial(torch.argmax, values, dim=-1) for values in logits), 4 * VOCABULARY
        ),
    )


def _bitmask(rows: int) -> Case:
    """Half of the columns are allowed. What it reads are logits, of which it writes half, and the mask."""
    logits, generator = _logits(MEMBERS, rows, VOCABULARY), torch.Generator().manual_seed(0)
    words = -(-VOCABULARY // 32)
    mask = torch.randint(-(2**31), 2**31, (rows, words), generator=generator, dtype=torch.int32)
    bits = torch.arange(32, dtype=torch.int32)
    forbidden = (mask[:, :, None] >> bits & 1 == 0).view(rows, -1)[:, :VOCABULARY]
    return Case(
        family="sampling",
        name="bitmask",
        size=str(VOCABULARY),
        rows=rows,
        work=Work(4 * rows * (VOCABULARY + words)),
        members=tuple(partial(apply_bitmask, values, mask) for values in logits),
        buffers=tuple(as_bytes(values, mask) for values in logits),
        peer=Peer(
            "torch masked_fill_",
            tuple(
                partial(values.masked_fill_, forbidden, -torch.inf)
                for values in _logits(MEMBERS, rows, VOCABULARY)
            ),
            5 * rows * VOCABULARY,
        ),
    )


def _sample(rows: int) -> Case:
    logits = _logits(MEMBERS, rows, VOCABULARY)
    parameters = pack_parameters(
        temperature=torch.full((rows,), 0.7, dtype=torch.float64),
        top_k=torch.full((rows,), 50, dtype=torch.int64),
        top_p=torch.full((rows,), 0.95, dtype=torch.float64),
        min_p=torch.zeros(rows, dtype=torch.float64),
        seeds=torch.arange(rows, dtype=torch.int64),
    )
    positions = torch.full((rows,), 100, dtype=torch.int64)
    return Case(
        family="sampling",
        name="temperature, top-k 50, top-p 0.95, draw",
        size=str(VOCABULARY),
        rows=rows,
        work=Work(4 * rows * VOCABULARY),
        members=tuple(partial(choose, values, parameters, positions) for values in logits),
        buffers=tuple(map(as_bytes, logits)),
        peer=Peer(
            "torch sort",
            tuple(partial(torch.sort, values, descending=True) for values in logits),
            4 * rows * VOCABULARY,
        ),
    )


def _logprobs() -> Case:
    logits, ids = _logits(MEMBERS, 1, VOCABULARY), torch.tensor([17])
    return Case(
        family="sampling",
        name="log-probabilities of a token and the best 20",
        size=str(VOCABULARY),
        rows=1,
        work=Work(4 * VOCABULARY),
        members=tuple(partial(describe_tokens, values, ids, 20) for values in logits),
        buffers=tuple(map(as_bytes, logits)),
        peer=Peer(
            "torch.log_softmax",
            tuple(partial(torch.log_softmax, values, dim=-1) for values in logits),
            4 * VOCABULARY,
        ),
    )


def _logits(members: int, rows: int, count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(rows, count, generator=generator) * 3 for _ in range(members)]
