"""What a test finds around it: backends, threads, and the directory of golden values."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import torch

from di_kernels.dispatch import BACKEND_OF_DEVICE
from di_kernels.instruction_sets import instruction_set, set_instruction_set
from di_kernels.threads import num_threads, set_num_threads


def device_backends(family: str) -> list[str]:
    """Devices of this machine (``"cpu"``, ``"cuda"``, ``"npu"``) whose backend implements ``family``.

    Tests are parametrised with them: they move the inputs there, call the public operation, and compare with
    ``di_kernels.reference``.
    """
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "npu": hasattr(torch, "npu")}
    return [
        device
        for device, backend in BACKEND_OF_DEVICE.items()
        if present[device] and _has_module(f"di_kernels.{backend}", family)
    ]


def _has_module(package: str, name: str) -> bool:
    return (
        importlib.util.find_spec(package) is not None
        and importlib.util.find_spec(f"{package}.{name}") is not None
    )


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Run the CPU kernels with ``count`` threads inside the block."""
    before = num_threads()
    set_num_threads(count, work_per_thread=1)
    try:
        yield
    finally:
        set_num_threads(before)


@contextlib.contextmanager
def instructions(name: str) -> Iterator[None]:
    """Run the CPU kernels with the instruction set ``name`` inside the block."""
    before = instruction_set()
    set_instruction_set(name)
    try:
        yield
    finally:
        set_instruction_set(before)


@contextlib.contextmanager
def torch_default(changed: torch.dtype | torch.device) -> Iterator[None]:
    """Run the block with another default of torch: the type or the device of tensors that are made without saying."""
    if isinstance(changed, torch.device):
        with changed:
            yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(changed)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def shared_directory(start: str | Path) -> Path | None:
    """The directory ``shared`` (specifications and golden values) beside this repository, or None.

    Args:
        start: a file inside the repository, usually ``__file__`` of the test.
    """
    for parent in Path(start).resolve().parents:
        candidate = parent / "shared"
        if (candidate / "golden").is_dir():
            return candidate
    return None
