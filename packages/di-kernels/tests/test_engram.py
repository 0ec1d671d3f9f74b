"""Engram: worked hashes, the released constants and texts, gather, gate, independence of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from di_kernels import instruction_sets
from di_kernels.ops.engram import (
    EngramHash,
    EngramTable,
    engram_gather,
    engram_hash,
    engram_inject,
    engram_windows,
)
from di_kernels.reference import engram as reference
from di_kernels.testing import (
    Hostile,
    assert_same_bits,
    assert_same_values,
    device_backends,
    hostile,
    instructions,
    misaligned,
    shared_directory,
    threads,
    with_gaps,
    with_row_gaps,
)
from torch import Tensor

EPS = 1e-20
SMALL = EngramHash(
    multipliers=torch.tensor([3, 2**61 + 7, -5]),
    primes=torch.tensor([[101, 103], [107, 109]]),
    offsets=torch.tensor([0, 101, 204, 311]),
)

# Backbone specification, 5.7: window and hash ids at layers 1 and 14.
WORKED = {
    (
        0,
        (0, 2, 2, 2),
    ): """5702652 24393184 39183301 61503783 78984481 90144770 103724983 121476532 131476717 152385926
        164143652 191599181 198145581 217419202 238329687 247482304 257520185 283540304 288689443 315264704 322314652
        348890037 367865216 380066193""",
    (
        1,
        (0, 2, 2, 2),
    ): """14361964 29977809 32716444 61209771 67456205 84275051 108494439 120604547 132225184 150270452
        174805952 178895254 193207923 211610196 226280582 252505246 261362261 279862797 301364059 312864848 328367036
        349372619 363873742 372375971""",
    (
        0,
        (99091, 1234, 17, 5),
    ): """7841506 26173565 36537651 63998639 69685053 84512634 101351253 127974346 129506700
        145342158 172807010 182534021 203111983 210224331 236922375 244318886 260765209 276146829 288348902 305656157
        334382146 339251246 361054413 383250778""",
    (
        1,
        (99091, 1234, 17, 5),
    ): """3315102 30010869 33829090 51274514 77267621 84401643 106522093 127296527 141499324
        157556998 174749290 180577684 207643835 209679335 235166726 254244633 262841532 287685283 288635945 310504513
        321647291 342750527 361934310 381023310""",
    (
        0,
        (99091, 1234, 2, 2),
    ): """7841506 26173565 36537651 63998639 69685053 84512634 101351253 127974346 130860961
        144103397 162102830 176440239 204220903 214933702 239031144 253293086 262376350 277542453 303394934 311526562
        328801832 340495212 357510790 381898452""",
}


@pytest.fixture(scope="module")
def released() -> Mapping[str, np.ndarray]:
    shared = shared_directory(__file__)
    if shared is None:
        pytest.skip("the directory `shared` with the golden values is not beside this repository")
    return np.load(shared / "golden" / "engram_released.npz")


def layer_hash(released: Mapping[str, np.ndarray], layer: int) -> EngramHash:
    names = ("multipliers", "primes", "offsets")
    return EngramHash(*(torch.from_numpy(released[name][layer].copy()) for name in names))


def context_of(ids: Tensor, n: int = 4) -> Tensor:
    """Tokens ``[rows, n]`` of every position of one sequence, -1 before its start."""
    padded = torch.cat([torch.full((n - 1,), -1, dtype=torch.int32), ids])
    return padded.unfold(0, n, 1).flip(1)


@pytest.mark.parametrize(("layer", "window"), list(WORKED))
def test_worked_hashes(released: Mapping[str, np.ndarray], layer: int, window: tuple[int, ...]) -> None:
    ids = engram_hash(torch.tensor([window]), layer_hash(released, layer))
    assert ids[0].tolist() == [int(word) for word in WORKED[layer, window].split()]


@pytest.mark.parametrize("text", ["english", "chinese", "code", "emoji", "random"])
def test_released_hashes_of_texts(released: Mapping[str, np.ndarray], text: str) -> None:
    ids = torch.from_numpy(released[f"{text}.ids"])
    vocabulary = torch.from_numpy(released["token_map"])
    windows = engram_windows(context_of(ids), vocabulary, int(released["pad_id"]))
    for layer in (0, 1):
        expected = torch.from_numpy(released[f"{text}.hash"][:, layer])
        assert_same_bits(engram_hash(windows, layer_hash(released, layer)), expected)


def test_released_hashes_around_image_tokens(released: Mapping[str, np.ndarray]) -> None:
    vocabulary = torch.from_numpy(released["token_map"])
    text = torch.from_numpy(released["masked.mask"])
    tokens = torch.from_numpy(released["random.ids"]).masked_fill(~text, len(vocabulary) + 1)
    windows = engram_windows(context_of(tokens), vocabulary, int(released["pad_id"]))
    for layer in (0, 1):
        ids = engram_hash(windows, layer_hash(released, layer))
        assert_same_bits(ids[text], torch.from_numpy(released["masked.hash"][:, layer])[text])
        assert ids[~text].eq(-1).all()


def test_windows_stop_at_the_first_barrier() -> None:
    vocabulary = torch.tensor([10, 11, 12, 13], dtype=torch.int32)
    tokens = torch.tensor(
        [[0, 1, 2], [3, -1, 2], [3, 4, 2], [1, 2, -1], [4, 1, 2], [-1, 0, 0]], dtype=torch.int32
    )
    expected = [[10, 11, 12], [13, 7, 7], [13, 7, 7], [11, 12, 7], [-1, 7, 7], [-1, 7, 7]]
    for layout in (tokens, with_gaps(tokens)):
        assert engram_windows(layout, vocabulary, 7).tolist() == expected
    assert engram_windows(tokens, misaligned(vocabulary), 7).tolist() == expected


@pytest.mark.parametrize("device", device_backends("engram"))
def test_windows_and_hashes_equal_the_reference(device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    vocabulary = torch.randint(0, 2**31 - 1, (50,), generator=generator, dtype=torch.int32)
    tokens = torch.randint(-2, 53, (200, 3), generator=generator, dtype=torch.int32)
    windows = engram_windows(tokens.to(device), vocabulary.to(device), 2)
    assert_same_bits(windows.cpu(), reference.engram_windows(tokens, vocabulary, 2))
    constants = EngramHash(SMALL.multipliers.to(device), SMALL.primes.to(device), SMALL.offsets.to(device))
    ids = engram_hash(windows, constants).cpu()
    assert_same_bits(ids, reference.engram_hash(windows.cpu(), SMALL))
    assert (ids.eq(-1).all(dim=1) | (ids.ge(0) & ids.lt(420)).all(dim=1)).all()


def table_of(stored: str, rows: int = 40, dim: int = 64) -> EngramTable:
    if stored != "fp8":
        return EngramTable(hostile(Hostile.NORMAL, rows, dim, dtype=getattr(torch, stored)))
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 256, (rows, dim), generator=generator, dtype=torch.uint8)
    return EngramTable(
        codes, torch.randint(110, 140, (rows, dim // 32), generator=generator, dtype=torch.uint8)
    )


@pytest.mark.parametrize("device", device_backends("engram"))
@pytest.mark.parametrize("stored", ["fp8", "bfloat16", "float32"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gather_equals_the_reference(dtype: torch.dtype, stored: str, device: str) -> None:
    table = table_of(stored)
    ids = torch.randint(-3, 40, (7, 5), generator=torch.Generator().manual_seed(1))
    expected = reference.engram_gather(ids, table, dtype)
    scale = table.scale
    layouts = [
        table,
        EngramTable(with_row_gaps(table.data), None if scale is None else with_row_gaps(scale)),
        EngramTable(misaligned(table.data), None if scale is None else misaligned(scale)),
    ]
    for layout in layouts:
        moved = EngramTable(layout.data.to(device), None if layout.scale is None else layout.scale.to(device))
        assert_same_values(engram_gather(ids.to(device), moved, dtype).cpu(), expected)
    assert_same_values(engram_gather(with_gaps(ids), table, dtype), expected)


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        (0.0, 0.50025),
        (1e-9, 0.50025),
        (-1e-9, 0.49975),
        (0.25, 0.622459),
        (-0.25, 0.377541),
        (4.0, 0.880797),
    ],
)
def test_gate_values(delta: float, expected: float) -> None:
    # One channel: both vectors normalise to their sign, so that the product of the weights is the similarity.
    stream, kv = torch.ones(1, 1, 1), torch.tensor([[1.0, 1.0]])
    weight = torch.tensor([[delta]])
    y = engram_inject(stream, kv, weight, torch.ones(1, 1), EPS, torch.tensor([True]))
    assert math.isclose(y.item() - 1.0, expected, abs_tol=1e-6)


def injection(kind: Hostile, rows: int, m: int, dim: int, dtype: torch.dtype) -> list[Tensor]:
    weights = [hostile(Hostile.NORMAL, m, dim, dtype=torch.bfloat16, seed=seed) for seed in (2, 3)]
    return [
        hostile(kind, rows, m, dim, dtype=dtype),
        hostile(kind, rows, (m + 1) * dim, dtype=dtype, seed=1),
        *weights,
    ]


@pytest.mark.parametrize("device", device_backends("engram"))
@pytest.mark.parametrize(
    "kind", [Hostile.NORMAL, Hostile.ZEROS, Hostile.HUGE, Hostile.OUTLIERS, Hostile.TIES]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_injection_matches_reference(dtype: torch.dtype, kind: Hostile, device: str) -> None:
    stream, kv, q_weight, k_weight = injection(kind, 6, 4, 40, dtype)
    active = torch.tensor([True, True, False, True, False, True])
    expected = reference.engram_inject(stream, kv, q_weight, k_weight, EPS, active)
    # The gate carries the error of float32 sums, at most 1e-5 (its slope is largest near a similarity of 1e-6,
    # where the floor ends it); bfloat16 may then round to a neighbour.
    tolerance = {torch.bfloat16: 2.0**-7, torch.float32: 1e-5}[dtype]
    magnitude = (stream.float().abs() + kv.float()[:, None, -40:].abs()).max().item()
    for layout in (stream, with_gaps(stream)):
        arguments = [tensor.to(device) for tensor in (layout, kv, q_weight, k_weight)]
        y = engram_inject(*arguments, EPS, active.to(device)).cpu()
        torch.testing.assert_close(y, expected, rtol=tolerance, atol=magnitude * 1e-5)
        assert_same_bits(y[~active], stream[~active])
    assert_same_bits(engram_inject(stream, kv, q_weight.float(), k_weight.float(), EPS, active), y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_do_not_depend_on_each_other_or_on_threads(dtype: torch.dtype) -> None:
    stream, kv, q_weight, k_weight = injection(Hostile.OUTLIERS, 130, 4, 40, dtype)
    active = torch.arange(130) % 3 != 0
    ids = torch.randint(-1, 40, (130, 6), generator=torch.Generator().manual_seed(1))

    def run(rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        injected = engram_inject(stream[rows], kv[rows], q_weight, k_weight, EPS, active[rows])
        return (
            injected,
            engram_gather(ids[rows], table_of("bfloat16"), dtype),
            engram_hash(ids[rows, :3], SMALL),
        )

    with threads(1):
        together = run(slice(None))
    with threads(2):
        for rows in (slice(None), slice(1, 2), slice(64, 67)):
            for got, expected in zip(run(rows), together, strict=True):
                assert_same_bits(got, expected[rows])


def test_a_nan_row_touches_no_other() -> None:
    stream, kv, q_weight, k_weight = injection(Hostile.NORMAL, 3, 2, 32, torch.float32)
    active = torch.ones(3, dtype=torch.bool)
    clean = engram_inject(stream, kv, q_weight, k_weight, EPS, active)
    kv[1, 5] = float("nan")
    y = engram_inject(stream, kv, q_weight, k_weight, EPS, active)
    assert y[1, 0].isnan().all()
    assert_same_bits(y[1, 1], clean[1, 1])
    assert_same_bits(y[::2], clean[::2])


def test_empty_tensors() -> None:
    empty = torch.empty(0, 3, dtype=torch.int32)
    windows = engram_windows(empty, torch.zeros(4, dtype=torch.int32), 2)
    assert windows.shape == (0, 3)
    assert engram_hash(windows, SMALL).shape == (0, 4)
    assert engram_gather(torch.empty(0, 4, dtype=torch.int64), table_of("fp8"), torch.float32).shape == (
        0,
        256,
    )
    stream, kv, *weights = injection(Hostile.NORMAL, 0, 4, 8, torch.float32)
    assert engram_inject(stream, kv, *weights, EPS, torch.empty(0, dtype=torch.bool)).shape == (0, 4, 8)


def test_bad_arguments_are_refused() -> None:
    ids = torch.tensor([[0, 1], [39, 40]])
    with pytest.raises(IndexError, match="table id of row 1 is 40; allowed: 0 to 39"):
        engram_gather(ids, table_of("fp8"), torch.float32)
    with pytest.raises(TypeError, match="dtype is"):
        engram_gather(ids, table_of("fp8"), torch.float16)
    with pytest.raises(ValueError, match=r"table scale has shape \[40, 1\]; expected \[40, 2\]"):
        engram_gather(
            ids, EngramTable(table_of("fp8").data, torch.zeros(40, 1, dtype=torch.uint8)), torch.float32
        )
    windows = torch.zeros(1, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="primes holds 0"):
        engram_hash(windows, EngramHash(SMALL.multipliers, SMALL.primes * 0, SMALL.offsets))
    with pytest.raises(ValueError, match=r"primes has shape \[1, 2\]; expected \[2, any\]"):
        engram_hash(windows, EngramHash(SMALL.multipliers, SMALL.primes[:1], SMALL.offsets))
    with pytest.raises(TypeError, match="tokens has dtype"):
        engram_windows(ids, torch.zeros(4, dtype=torch.int32), 2)
    stream, kv, q_weight, k_weight = injection(Hostile.NORMAL, 2, 2, 8, torch.float32)
    with pytest.raises(ValueError, match="kv has shape"):
        engram_inject(stream, kv[:, 1:], q_weight, k_weight, EPS, torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match="q_weight has shape"):
        engram_inject(stream, kv, q_weight[:1], k_weight[:1], EPS, torch.ones(2, dtype=torch.bool))


@pytest.mark.parametrize("kind", list(Hostile))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dim", [32, 96, 131])
def test_same_bits_on_every_instruction_set(dim: int, dtype: torch.dtype, kind: Hostile) -> None:
    stream, kv, q_weight, k_weight = injection(kind, 3, 4, dim, dtype)
    active = torch.tensor([True, False, True])
    ids = torch.randint(-1, 40, (3, 30), generator=torch.Generator().manual_seed(1))

    def run() -> list[Tensor]:
        gathered = [engram_gather(ids, table_of(s), dtype) for s in ("fp8", "bfloat16", "float32")]
        return [engram_inject(stream, kv, q_weight, k_weight, EPS, active), *gathered]

    expected = run()
    for name in instruction_sets():
        with instructions(name):
            for got, wanted in zip(run(), expected, strict=True):
                assert_same_values(got, wanted)
