"""What benchmarks compare with: every byte is read, and every operation that is told of is done."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from di_kernels import ceilings, instruction_sets
from di_kernels.testing import instructions, threads


@pytest.fixture(params=instruction_sets())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    with instructions(request.param):
        yield request.param


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 255, 256, 320, 64 * 1001 + 5])
@pytest.mark.parametrize("count", [1, 2])
def test_a_read_sees_every_whole_line(isa: str, size: int, count: int) -> None:
    buffer = torch.randint(0, 256, (size,), generator=torch.Generator().manual_seed(size)).to(torch.uint8)
    want = 0
    for word in buffer[: size // 64 * 64].view(torch.int64).tolist():
        want ^= word & (2**64 - 1)
    with threads(count):
        assert ceilings.MemoryRead([buffer])() == want


def test_buffers_are_read_one_after_another(isa: str) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = (64, 0, 3 << 18, 130, (1 << 18) + 64)
    buffers = [torch.randint(0, 256, (size,), generator=generator).to(torch.uint8) for size in sizes]
    want = 0
    for buffer in buffers:
        want ^= ceilings.MemoryRead([buffer])()
    with threads(2):
        assert ceilings.MemoryRead(buffers)() == want
    assert ceilings.MemoryRead([])() == 0


def test_operations_of_all_threads_are_counted(isa: str) -> None:
    dots = 16 * 2 * 16 * 16 * 32 if isa == "amx" else 12 * 2 * 16 * 2
    for count in (1, 2):
        with threads(count):
            assert ceilings.dot_peak(7) == count * 7 * dots
            assert ceilings.multiply_add_peak(7) == count * 7 * 12 * 16 * 2
            assert ceilings.dot_peak(0) == 0


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="iterations"):
        ceilings.dot_peak(-1)
    with pytest.raises(ValueError, match="iterations"):
        ceilings.multiply_add_peak(2**41)
    with pytest.raises(TypeError, match="buffer"):
        ceilings.MemoryRead([torch.zeros(64)])()
    with pytest.raises(ValueError, match="contiguous"):
        ceilings.MemoryRead([torch.zeros(128, dtype=torch.uint8)[::2]])()
