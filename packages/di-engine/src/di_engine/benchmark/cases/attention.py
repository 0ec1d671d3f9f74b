"""Sparse attention of a decode row, at several lengths of context, and the index scores before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from di_kernels.memory import allocate
from di_kernels.ops.attention import EntryKeys, WindowKeys, sparse_attention
from di_kernels.ops.formats import EntryFormat, encode, encode_records, round_trip
from di_kernels.ops.indexer import IndexPages, index_scores, select_entries
from torch import Tensor

from di_engine.benchmark.measure import Case, Recipe, as_bytes
from di_engine.benchmark.random_weights import RandomBytes
from di_engine.benchmark.release import TEXT
from di_engine.benchmark.work import attention_work, index_work

CONTEXTS = (8192, 131072, 1048576)
"""Tokens that the sequence has; attention should not care."""
SCORED = (100_000, 1_000_000)
SELECTIONS = ("of all", "with candidates", "among candidates")
PAGE = 64
"""Entries of a page: a block of 128 tokens at ratio 2."""
MEMBERS = 8
"""Rows with selections of their own, in turn."""

HEADS, DIM, WINDOW, SELECTED = (
    TEXT[name] for name in ("num_attention_heads", "head_dim", "sliding_window", "index_topk")
)
INDEX_HEADS, INDEX_DIM = TEXT["index_n_heads"], TEXT["index_head_dim"]
CANDIDATES = TEXT["candidate_topk_blocks"] * TEXT["candidate_block_size"]


def attention_cases() -> Iterator[Recipe]:
    """Recipes of the cases."""
    for context, rows in (*((context, 1) for context in CONTEXTS), (CONTEXTS[0], 16)):
        yield Recipe(f"attention, context {context}, rows {rows}", partial(_attention, context, rows))
    yield Recipe(f"index scores, {SCORED[0]} entries", partial(_scores, SCORED[0]))
    for entries in SCORED:
        for what in SELECTIONS:
            yield Recipe(f"select {what}, {entries} entries", partial(_select, entries, what))


def _attention(context: int, rows: int) -> Case:
    random, generator = RandomBytes(), torch.Generator().manual_seed(0)
    entries = context // 2
    # Pages repeat: what matters is that their table and the spread of the selection grow with the context.
    pages = encode_records(random.values(4096, DIM), EntryFormat.FP4).view(
        -1, PAGE, EntryFormat.FP4.record_bytes(DIM)
    )
    pages = _repeat(pages, max(1, min(entries // 4096, 128)))
    table = torch.arange(entries // PAGE, dtype=torch.int32).remainder(len(pages)).view(1, -1)
    ring = encode_records(random.values(WINDOW, DIM), EntryFormat.FP8).view(1, WINDOW, -1)
    fresh = encode_records(random.values(rows, DIM), EntryFormat.FP8)
    window = WindowKeys(
        ring=ring,
        fresh=fresh,
        entry=EntryFormat.FP8,
        slot=_all(rows, 0),
        split=_all(rows, context),
        fresh_start=_all(rows, 0),
        begin=_all(rows, context - WINDOW),
        end=_all(rows, context),
        width=WINDOW,
    )
    q = random.values(rows, HEADS, DIM)
    sink = torch.zeros(HEADS)

    def member() -> Callable[[], object]:
        selected = torch.stack(
            [torch.randperm(entries, generator=generator)[:SELECTED].sort().values for _ in range(rows)]
        )
        keys = EntryKeys(pages, EntryFormat.FP4, table, _all(rows, 0), selected.to(torch.int32))
        return lambda: sparse_attention(q, window, keys, sink, DIM**-0.5)

    work = attention_work(rows, HEADS, DIM, (WINDOW, EntryFormat.FP8), (SELECTED, EntryFormat.FP4))
    return Case(
        family="attention",
        name=f"{WINDOW} + {SELECTED} keys, {HEADS} heads",
        size=f"{context} tokens",
        rows=rows,
        work=work,
        members=tuple(member() for _ in range(MEMBERS)),
        buffers=((random.bytes(work.read),),),
    )


def _index_pages(random: RandomBytes, entries: int) -> IndexPages:
    count = -(-entries // PAGE)
    codes, scales = encode(random.values(PAGE * 256, INDEX_DIM), EntryFormat.MXFP4)
    repeats = -(-count // 256)
    return IndexPages(
        values=_repeat(codes.view(256, PAGE, -1), repeats)[:count],
        scales=_repeat(scales.view(256, PAGE, -1), repeats)[:count],
        block_table=torch.arange(count, dtype=torch.int32).view(1, -1),
        sequence=_all(1, 0),
    )


def _queries(random: RandomBytes) -> tuple[Tensor, Tensor]:
    q = round_trip(random.values(1, INDEX_HEADS, INDEX_DIM), EntryFormat.MXFP4)
    return q, random.values(1, INDEX_HEADS, std=(INDEX_DIM * INDEX_HEADS) ** -0.5)


def _scores(entries: int) -> Case:
    random = RandomBytes()
    pages = _index_pages(random, entries)
    q, weights = _queries(random)
    visible = _all(1, entries)
    return Case(
        family="indexer",
        name=f"index scores, {INDEX_HEADS} heads",
        size=f"{entries} entries",
        rows=1,
        work=index_work(1, INDEX_HEADS, INDEX_DIM, entries),
        members=(lambda: index_scores(q, weights, pages, visible, None),),
        buffers=(as_bytes(pages.values, pages.scales),),
    )


def _select(entries: int, what: str) -> Case:
    """Scores and the choice of entries in one pass: over all of them at a source, which may choose candidate blocks as
    well, or over the candidates, however many entries there are."""
    random, generator = RandomBytes(), torch.Generator().manual_seed(0)
    pages = _index_pages(random, entries)
    q, weights = _queries(random)
    visible = _all(1, entries)
    size, count = TEXT["candidate_block_size"], TEXT["candidate_topk_blocks"]
    blocks = (
        torch.randperm(entries // size, generator=generator)[:count].sort().values.to(torch.int32).view(1, -1)
    )
    candidates = blocks if what == "among candidates" else None
    top_blocks = count if what == "with candidates" else None
    scored = CANDIDATES if candidates is not None else entries
    work = index_work(1, INDEX_HEADS, INDEX_DIM, scored)

    def select() -> object:
        return select_entries(
            q,
            weights,
            pages,
            visible,
            SELECTED,
            candidates=candidates,
            top_blocks=top_blocks,
            block_size=size,
        )

    return Case(
        family="indexer",
        name=f"select {SELECTED} {what}",
        size=f"{entries} entries",
        rows=1,
        work=work,
        members=(select,),
        buffers=((random.bytes(work.read),),),
    )


def _repeat(pages: Tensor, times: int) -> Tensor:
    """So many times behind each other, in the kind of memory that a cache pool has."""
    memory = allocate(times * pages.nbytes).view(pages.dtype).view(times, *pages.shape)
    return memory.copy_(pages).flatten(0, 1)


def _all(rows: int, value: int) -> Tensor:
    return torch.full((rows,), value, dtype=torch.int32)
