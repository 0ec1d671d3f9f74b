"""Memory for what is large: where it lies, and in which pages."""

from __future__ import annotations

import ctypes
import platform
import re
from pathlib import Path

import pytest
import torch
from di_kernels.memory import allocate

MAPPINGS = Path("/proc/self/smaps")
LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.parametrize("nbytes", [0, 1, 5 << 20])
def test_memory_lies_at_large_pages(nbytes: int) -> None:
    memory = allocate(nbytes)
    assert (memory.numel(), memory.dtype) == (nbytes, torch.uint8)
    assert nbytes == 0 or memory.data_ptr() % (2 << 20) == 0
    memory.fill_(7)


def flags_at(address: int) -> list[str]:
    """Those of the mapping that has this address."""
    found = False
    for line in MAPPINGS.read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            found = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif found and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError("no mapping has the address")


@pytest.mark.skipif(not (MAPPINGS.exists() and LARGE_PAGES.exists()), reason="the system has no large pages")
def test_large_pages_are_asked_for() -> None:
    memory = allocate(5 << 20)
    assert "hg" in flags_at(memory.data_ptr())
    assert "hg" in flags_at(memory.data_ptr() + (4 << 20) - 1)


POLICIES = Path("/proc/self/numa_maps")


def policy_at(address: int) -> str:
    """That of the mapping that begins last at or before this address."""
    lines = (line.split() for line in POLICIES.read_text().splitlines())
    return max((int(start, 16), policy) for start, policy, *_ in lines if int(start, 16) <= address)[1]


def policies_are_free() -> bool:
    """Whether the system tells memory policies and lets a process have its own; containers often do not."""
    get_mempolicy = {"x86_64": 239, "aarch64": 236}.get(platform.machine())
    if get_mempolicy is None or not POLICIES.exists():
        return False
    mode = ctypes.c_int(-1)
    return ctypes.CDLL(None).syscall(get_mempolicy, ctypes.byref(mode), None, 0, None, 0) == 0 == mode.value


@pytest.mark.skipif(not policies_are_free(), reason="the system has no memory policies for us")
def test_pages_lie_on_all_memory_nodes_in_turn() -> None:
    memory = allocate(64 << 20)  # more than comes from the heap, where earlier tests have been
    assert policy_at(memory.data_ptr()).startswith("interleave:")
    assert policy_at(memory.data_ptr() + (64 << 20) - 1).startswith("interleave:")


def test_less_than_no_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="nbytes is -1"):
        allocate(-1)
    with pytest.raises(TypeError, match="nbytes"):
        allocate(1.5)  # type: ignore[arg-type]


def test_more_than_the_system_gives_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not asked of the system itself: a sanitizer ends the process for it."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(MemoryError, match="nbytes is 4096, more than the system gives"):
        allocate(4096)
