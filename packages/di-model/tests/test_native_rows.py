"""Rows of a step as a plan expands them, against the tensors that the composed model uses."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from di_cache import CacheLayout, CacheSpec, LayerCacheSpec
from di_kernels.plan import step_rows
from di_model.batch import Batch, EntryRows, build_batch
from torch import Tensor

WINDOW, BLOCKS, SLOTS = 6, 40, 9


def layout(block_size: int = 8, max_draft_tokens: int = 2) -> CacheLayout:
    return CacheLayout.from_spec(
        CacheSpec(
            head_dim=32,
            index_head_dim=32,
            window=WINDOW,
            layers=(
                LayerCacheSpec(0, 0, owns_kv=False, owns_index=False),
                LayerCacheSpec(1, 2, owns_kv=True, owns_index=True),
                LayerCacheSpec(2, 1, owns_kv=True, owns_index=True),
            ),
            num_producer_layers=3,
            block_size=block_size,
            max_draft_tokens=max_draft_tokens,
        )
    )


def sizes(of: CacheLayout) -> tuple[int, int, int, int, int, int]:
    return of.spec.block_size, BLOCKS, SLOTS, WINDOW, of.window_cells, of.compress_cells


def random_step(draw: random.Random, block_size: int) -> dict[str, Tensor]:
    sequences, width, lookback = draw.randint(0, 5), draw.randint(1, 5), draw.randint(0, 3)
    starts, lengths = [], []
    for _ in range(sequences):
        start = draw.choice([0, 0, 1, 2, draw.randrange(width * block_size)])
        start = min(start, width * block_size)
        starts.append(start)
        lengths.append(draw.choice([0, 1, 1, 2, draw.randint(0, 30)]))
        lengths[-1] = min(lengths[-1], width * block_size - start)

    def ints(values: list[int], *shape: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32).view(*shape)

    return {
        "tokens": ints([draw.randint(-1, 99) for _ in range(sum(lengths))], -1),
        "q_start": ints(starts, -1),
        "q_len": ints(lengths, -1),
        "slots": ints([draw.randrange(SLOTS) for _ in range(sequences)], -1),
        "block_table": ints([draw.randrange(BLOCKS) for _ in range(sequences * width)], sequences, width),
        "context": ints([draw.randint(-1, 99) for _ in range(sequences * lookback)], sequences, lookback),
    }


def expected(batch: Batch) -> dict[str, Tensor]:
    window = batch.window
    fields = {
        "positions": batch.positions,
        "sequence": batch.sequence,
        "last_tokens": batch.last_tokens.flatten(),
        "slot": window.slot,
        "split": window.split,
        "fresh_start": window.fresh_start,
        "begin": window.begin,
        "end": window.end,
    }
    for field in ("row", "slot", "cell"):
        fields[f"window_store.{field}"] = getattr(batch.window_store, field)
        fields[f"compress_store.{field}"] = getattr(batch.entries[2].ring, field)
    fields |= entries("singles", batch.entries[1]) | entries("pairs", batch.entries[2])
    partners = batch.entries[2].pairs
    assert partners is not None
    return fields | {f"partners.{field}": getattr(partners, field) for field in ("first", "slot", "cell")}


def entries(name: str, of: EntryRows) -> dict[str, Tensor]:
    return {
        f"{name}.visible": of.visible,
        f"{name}.row": of.store.row,
        f"{name}.block": of.store.block,
        f"{name}.entry": of.store.entry,
        f"{name}.rope_position": of.rope_positions,
    }


@pytest.mark.parametrize("seed", range(40))
def test_rows_are_those_of_the_batch(seed: int) -> None:
    draw = random.Random(seed)
    where = layout(draw.choice([2, 8, 14]), draw.choice([0, 2, 5]))
    step = random_step(draw, where.spec.block_size)
    found = step_rows(sizes(where), **step)
    wanted = expected(build_batch(where, **step))
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert found[name] == values.tolist(), name


def test_arrays_of_numpy_are_read_in_place_writable_or_not() -> None:
    where, step = layout(), random_step(random.Random(3), 8)
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in step.items()}
    for array in arrays.values():
        array.flags.writeable = False
    assert step_rows(sizes(where), **arrays) == step_rows(sizes(where), **step)


GOOD: dict[str, Any] = {
    "tokens": [5, 6, 7],
    "q_start": [7, 0],
    "q_len": [2, 1],
    "slots": [1, 2],
    "block_table": [[3, 4], [5, 0]],
    "context": [[1], [-1]],
}
BAD: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (ValueError, "q_start is -1", {"q_start": [-1, 0]}),
    (ValueError, "q_len is -2", {"q_len": [-2, 1]}),
    (ValueError, "slots is -1", {"slots": [1, -1]}),
    (ValueError, "block_table is -7", {"block_table": [[3, 4], [5, -7]]}),
    (ValueError, r"q_start \+ q_len is 17; allowed: at most 16", {"q_start": [15, 0]}),
    (ValueError, "size of tokens is 2; allowed: 3", {"tokens": [5, 6]}),
    (ValueError, "size of q_len is 1; allowed: 2", {"q_len": [3]}),
    (ValueError, "size of slots", {"slots": [1]}),
    (ValueError, "size of block_table", {"block_table": [[3, 4]]}),
    (ValueError, "size of context", {"context": [[1]]}),
    (ValueError, "block_table has rank 1", {"block_table": [3, 4]}),
    (IndexError, "slot of row 1 is 9; allowed: 0 to 8", {"slots": [1, 9]}),
    (IndexError, "block of row 0 is 40; allowed: 0 to 39", {"block_table": [[3, 40], [5, 0]]}),
    (ValueError, "q_start .* 2147483648", {"q_start": [2**31 - 1, 0], "q_len": [1, 2]}),
]


@pytest.mark.parametrize(("error", "message", "change"), BAD)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_arrays_that_describe_no_step_are_refused(
    kind: str, error: type[Exception], message: str, change: dict[str, Any]
) -> None:
    make = np.array if kind == "numpy" else torch.tensor
    dtype = np.int32 if kind == "numpy" else torch.int32
    step = {name: make(value, dtype=dtype) for name, value in {**GOOD, **change}.items()}
    with pytest.raises(error, match=message):
        step_rows(sizes(layout()), **step)


def test_blocks_behind_the_last_row_are_never_looked_at() -> None:
    step = {name: np.array(value, dtype=np.int32) for name, value in GOOD.items()}
    step["block_table"] = np.array([[3, 4], [5, 4000]], dtype=np.int32)
    assert step_rows(sizes(layout()), **step)["singles.block"] == [3, 4, 5]


@pytest.mark.parametrize("value", [np.zeros(2), np.zeros(2, np.int64), torch.zeros(2), [1, 2], "ab", b"ab"])
def test_what_is_no_array_of_int32_is_refused(value: object) -> None:
    step: dict[str, Any] = {name: np.array(value, dtype=np.int32) for name, value in GOOD.items()}
    with pytest.raises(TypeError, match="q_start must be an array or CPU tensor of int32"):
        step_rows(sizes(layout()), **{**step, "q_start": value})


def test_arrays_with_gaps_are_refused() -> None:
    step = {name: np.array(value, dtype=np.int32) for name, value in GOOD.items()}
    with pytest.raises((BufferError, ValueError)):
        step_rows(sizes(layout()), **{**step, "q_start": np.array([7, 9, 0, 9], dtype=np.int32)[::2]})
