"""Sums of products in the tiles of AMX: the order in which they add up, and the range of weights."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from di_kernels import _native, equal_instruction_sets, instruction_sets, set_instruction_set
from di_kernels.ops.attention import gathered_attention
from di_kernels.ops.formats import EntryFormat, decode, encode, round_trip
from di_kernels.ops.indexer import IndexPages, index_scores
from di_kernels.ops.linear import LinearWeight, WeightFormat, linear
from di_kernels.ops.moe import ExpertWeights, experts
from di_kernels.packing import pack
from di_kernels.testing import Hostile, assert_same_bits, hostile, instructions, random_weight, threads
from torch import Tensor

needs_amx = pytest.mark.skipif("amx" not in instruction_sets(), reason="this machine has no AMX")
NARROW = [form for form in WeightFormat if form is not WeightFormat.FLOAT32]


def in_order(x: Tensor, weight: Tensor) -> Tensor:
    """x . weight^T in float32: of 32 inputs the even ones and the odd ones apart, their sum to the total."""
    blocks = -(-x.shape[1] // 32)
    padding = (0, 32 * blocks - x.shape[1])
    rows, columns = (torch.nn.functional.pad(part.float(), padding).numpy() for part in (x, weight))
    total = np.zeros((len(rows), len(columns)), dtype=np.float32)
    for start in range(0, 32 * blocks, 32):
        halves = [np.zeros_like(total), np.zeros_like(total)]
        for i in range(32):  # a product of bfloat16 numbers is exact
            halves[i % 2] += rows[:, start + i, None] * columns[None, :, start + i]
        total += halves[0] + halves[1]
    return torch.from_numpy(total)


@needs_amx
@pytest.mark.parametrize("k", [32, 96, 160, 1056])
@pytest.mark.parametrize("form", NARROW)
def test_the_order_of_the_sum(form: WeightFormat, k: int) -> None:
    weight = random_weight(form, 32, k)
    x = hostile(Hostile.OUTLIERS, 130, k, dtype=torch.bfloat16)
    expected = in_order(x, weight.dequantize())
    with instructions("amx"):
        for layout in (weight, pack(weight)):
            for rows in (1, 16, 35, 130):
                assert_same_bits(linear(x[:rows], layout, out_dtype=torch.float32), expected[:rows])


@needs_amx
@pytest.mark.parametrize("form", [WeightFormat.FP8, WeightFormat.MXFP4])
def test_every_code_times_every_scale(form: WeightFormat) -> None:
    """A weight with its scale is a bfloat16 number: infinite from 2^128 on, zero below 2^-126."""
    codes = 16 if form is WeightFormat.MXFP4 else 256
    code = torch.arange(32 * 256) % codes
    for scale in range(256):
        if form is WeightFormat.MXFP4:
            data = torch.zeros(32, 16, dtype=torch.uint8)
            data[:, 0] = code[:32].to(torch.uint8)
            weight = LinearWeight.mxfp4(data, torch.full((32, 1), scale, dtype=torch.uint8))
        else:
            data = torch.zeros(256, 32, dtype=torch.uint8)
            data[:, 0] = code[:256].to(torch.uint8)
            weight = LinearWeight.fp8(data, torch.full((8, 1), scale, dtype=torch.uint8))
        expected = weight.dequantize()[:, 0]
        expected[expected.abs() < (2.0**-126 if scale > 0 else torch.inf)] = (
            0  # the scale 2^-127 is zero itself
        )
        x = torch.zeros(1, 32, dtype=torch.bfloat16)
        x[0, 0] = 1
        with instructions("amx"):
            for layout in (weight, pack(weight)):
                got = linear(x, layout, out_dtype=torch.float32)[0]
                assert torch.equal(got.isnan(), expected.isnan())
                assert torch.equal(got.nan_to_num(0), expected.nan_to_num(0))


@needs_amx
@pytest.mark.parametrize("largest", [1, 8, 9, 40, 127, 200, 245, 246, 254])
def test_a_row_alone_has_the_bits_it_has_beside_another(largest: int) -> None:
    """Alone it meets MXFP4 without its scales, unless sums would leave the normal numbers; beside another, in tiles."""
    k = 160
    generator = torch.Generator().manual_seed(largest)

    def bytes_of(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high + 1, shape, generator=generator, dtype=torch.int32)

    exponents = bytes_of(max(1, largest - 9), largest, 20, k)
    numbers = bytes_of(0, 1, 20, k) << 15 | exponents << 7 | bytes_of(0, 127, 20, k)
    numbers[bytes_of(0, 4, 20, k) == 0] = 0
    numbers[0], numbers[1, 5], numbers[2, 7] = 0, 0x7F80, 1
    x = numbers.to(torch.int16).view(torch.bfloat16)
    for scale in (0, 1, 2, 9, 60, 127, 136, 200, 245, 254, 255):
        scales = bytes_of(max(0, scale - 2), scale, 32, k // 32).to(torch.uint8)
        weight = LinearWeight.mxfp4(bytes_of(0, 255, 32, k // 2).to(torch.uint8), scales)
        with instructions("amx"):
            for layout in (weight, pack(weight)):
                together = linear(x, layout, out_dtype=torch.float32)
                alone = [linear(x[i : i + 1], layout, out_dtype=torch.float32) for i in range(len(x))]
                assert_same_bits(torch.cat(alone), together)


@needs_amx
@pytest.mark.parametrize("count", [1, 2])
def test_no_thread_keeps_its_tiles(count: int) -> None:
    """They would be saved and loaded whenever the system switches to another thread."""
    weight = random_weight(WeightFormat.MXFP4, 64, 4096)
    x = hostile(Hostile.NORMAL, 40, 4096, dtype=torch.bfloat16)
    with instructions("amx"), threads(count):
        for rows in (3, 40, 16):
            linear(x[:rows], weight)
            assert _native.tiles_in_use() == 0


IN_A_REGION_OF_THE_HOST = """
import ctypes
import torch
from di_kernels import _native
from di_kernels.ops.linear import WeightFormat, linear
from di_kernels.testing import Hostile, hostile, instructions, random_weight

libraries = {line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line}
runtime = ctypes.CDLL(libraries.pop())
weight = random_weight(WeightFormat.FP8, 64, 256)
x = hostile(Hostile.NORMAL, 16, 256, dtype=torch.bfloat16)
square = torch.ones(256, 256, dtype=torch.bfloat16)
found = []

def region(_):
    for _ in range(3):
        found.append(linear(x, weight))
        found.append(_native.tiles_in_use())
        square @ square

with instructions("amx"):
    expected = linear(x, weight)
    runtime.GOMP_parallel(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(region), None, 1, 0)
    assert found[1::2] == [0, 0, 0], found[1::2]
    assert all(torch.equal(result, expected) for result in found[::2])
print("done")
"""


@needs_amx
def test_a_parallel_region_of_the_host_finds_no_tiles_in_use() -> None:
    """Its own products use tiles too, configured in another way, and release them behind our back."""
    done = subprocess.run(
        [sys.executable, "-c", IN_A_REGION_OF_THE_HOST], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@needs_amx
@pytest.mark.parametrize("dim", [32, 128])
@pytest.mark.parametrize("heads", [1, 5, 16, 23, 32, 49])
def test_the_order_of_index_scores(heads: int, dim: int) -> None:
    """The products of 32 elements add up exactly, so the order within them is free; heads are added up in order."""
    count = 150
    sizes = 2.0 ** torch.tensor([0, -20, -9, 4]).repeat_interleave(32)[:dim]
    q, keys = ((hostile(Hostile.NORMAL, 1, n, dim, seed=n) * sizes).bfloat16() for n in (heads, count))
    q = round_trip(q, EntryFormat.MXFP4)
    weights = hostile(Hostile.NORMAL, 1, heads, dtype=torch.bfloat16, seed=2)
    codes, scales = encode(keys, EntryFormat.MXFP4)
    zero = torch.zeros(1, dtype=torch.int32)
    values = decode(codes, scales, EntryFormat.MXFP4)[0]
    dots = in_order(q[0], values).bfloat16().float()
    expected = torch.zeros(count)
    for head in range(heads):
        expected += (dots[head].relu() * weights[0, head].float()).bfloat16().float()
    with instructions("amx"):
        got = index_scores(q, weights, IndexPages(codes, scales, zero[None], zero), zero + count, None)
    assert_same_bits(got[0], expected.bfloat16().float())


def test_groups_of_equal_sets_hold_every_set_once() -> None:
    groups = equal_instruction_sets()
    assert sorted(name for group in groups for name in group) == sorted(instruction_sets())
    assert instruction_sets()[-1] in groups[-1]


def test_a_set_that_is_chosen_while_others_compute_breaks_nothing() -> None:
    """Their parts may have the bits of either set, and are complete."""

    def matrices(n: int, k: int, seed: int) -> tuple[LinearWeight, ...]:
        return tuple(random_weight(WeightFormat.MXFP4, n, k, seed + e, exponent=-4) for e in range(200))

    bank = ExpertWeights(matrices(32, 32, 0), matrices(32, 32, 200), matrices(32, 32, 400))
    x = hostile(Hostile.NORMAL, 12, 32, dtype=torch.bfloat16)
    ids = torch.arange(12 * 30, dtype=torch.int32).view(12, 30) % 200
    weight = random_weight(WeightFormat.MXFP4, 8192, 32)
    long = random_weight(WeightFormat.MXFP4, 48, 8224, exponent=-4)
    many = hostile(Hostile.NORMAL, 130, 8224, dtype=torch.bfloat16)
    q, keys = (hostile(Hostile.NORMAL, *shape, dtype=torch.bfloat16) for shape in ((2, 40, 96), (70, 96)))
    index, sink = torch.arange(70, dtype=torch.int32).repeat(2, 1), torch.zeros(40)
    sets = instruction_sets()

    def compute_all() -> list[Tensor]:
        return [
            linear(x, weight),
            linear(many, long),
            linear(many[:1], pack(long)),
            linear(many[:1], long),
            gathered_attention(q, keys, index, sink, 0.1),
            experts(x, ids, None, bank, 10.0, quantize_input=True),
        ]

    with instructions(sets[-1]):
        expected = compute_all()
    wrong, done = [], threading.Event()

    def compute() -> None:
        for _ in range(10):
            got = compute_all()
            for one, other in zip(got, expected, strict=True):
                if not torch.allclose(one, other, rtol=0.05, atol=0.05 * float(other.abs().max())):
                    wrong.append(one)

    def choose() -> None:
        while not done.is_set():
            for name in sets[-2:]:
                set_instruction_set(name)

    chooser = threading.Thread(target=choose)
    with instructions(sets[-1]):
        chooser.start()
        workers = [threading.Thread(target=compute) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(timeout=120)
        done.set()
        chooser.join(timeout=120)
    assert not wrong
