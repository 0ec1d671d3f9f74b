"""Linear layers: every stored format, one row to many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from di_kernels.ops.linear import LinearWeight, linear
from di_kernels.packing import pack_all
from torch.nn import functional

from di_engine.benchmark.measure import Case, Peer, Recipe, as_bytes, pool_members
from di_engine.benchmark.random_weights import RandomBytes
from di_engine.benchmark.work import linear_work

ROWS = (1, 8, 64, 512)
SQUARE = ("4096x4096", 4096, 4096)
RELEASED_FP8 = (
    ("wq_a 1280x5120", 1280, 5120),
    ("wq_b 32768x1280", 32768, 1280),
    ("wo_b 5120x8192", 5120, 8192),
)
RELEASED_MXFP4 = (("w1 2304x5120", 2304, 5120), ("w2 5120x2304", 5120, 2304))
RELEASED_ROWS = (1, 64)

Make = Callable[[RandomBytes, int, int], LinearWeight]
STORED: dict[str, Make] = {
    "MXFP4": RandomBytes.mxfp4,
    "FP8": RandomBytes.fp8,
    "bfloat16": RandomBytes.bfloat16,
}
QUANTIZED = ("MXFP4", "FP8")
LAYOUTS = ("packed", "as stored")


def linear_cases() -> Iterator[Recipe]:
    """Recipes of the cases."""
    for name in STORED:
        for layout in LAYOUTS:
            for rows in ROWS:
                yield _recipe(name, layout, SQUARE, rows)
    for layout in LAYOUTS:
        for rows in RELEASED_ROWS:
            for size in RELEASED_FP8:
                yield _recipe("FP8", layout, size, rows)
            for size in RELEASED_MXFP4:
                yield _recipe("MXFP4", layout, size, rows)


def _recipe(name: str, layout: str, size: tuple[str, int, int], rows: int) -> Recipe:
    return Recipe(f"{name} {layout}, {size[0]}, rows {rows}", partial(_case, name, layout, size, rows))


def _case(name: str, layout: str, size: tuple[str, int, int], rows: int) -> Case:
    title, n, k = size
    random = RandomBytes()
    stored = STORED[name](random, n, k)
    count = pool_members(stored.nbytes, rows)
    weights = [stored, *(STORED[name](random, n, k) for _ in range(count - 1))]
    if layout == LAYOUTS[0]:
        weights = pack_all(weights)
    x = random.values(rows, k)
    quantize = name in QUANTIZED
    return Case(
        family="linear",
        name=f"{name} {layout}",
        size=title,
        rows=rows,
        work=linear_work(stored.nbytes, rows, n, k),
        members=tuple(partial(linear, x, weight, quantize_input=quantize) for weight in weights),
        buffers=tuple(as_bytes(weight.data, weight.scale) for weight in weights),
        peer=_torch(random, rows, n, k) if layout == LAYOUTS[0] else None,
    )


def _torch(random: RandomBytes, rows: int, n: int, k: int) -> Peer:
    """torch's linear of the same matrix in bfloat16, which it has to be expanded to."""
    x = random.values(rows, k)
    first = random.values(n, k, std=k**-0.5)
    weights = (first, *(first.clone() for _ in range(pool_members(first.nbytes, rows) - 1)))
    return Peer(
        "torch bfloat16", tuple(partial(functional.linear, x, weight) for weight in weights), first.nbytes
    )
