"""Fixtures shared by the kernel tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from di_kernels import equal_instruction_sets
from di_kernels.testing import instructions, shared_directory
from hypothesis import HealthCheck, settings

# A busy machine is no defect.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(params=equal_instruction_sets(), ids=lambda names: names[-1])
def equal_sets(request: pytest.FixtureRequest) -> Iterator[tuple[str, ...]]:
    """Instruction sets that give the same bits; the best of them is in use."""
    with instructions(request.param[-1]):
        yield request.param


@pytest.fixture(scope="session")
def golden() -> Callable[[str], torch.Tensor]:
    """Arrays of ``golden/ops.npz`` by name; names ending in ``.bf16`` hold bfloat16 bits and come as bfloat16."""
    shared = shared_directory(__file__)
    if shared is None:
        pytest.skip("the directory `shared` with the golden values is not beside this repository")
    arrays = np.load(shared / "golden" / "ops.npz")

    def read(name: str) -> torch.Tensor:
        tensor = torch.from_numpy(arrays[name])
        return tensor.view(torch.bfloat16) if name.endswith(".bf16") else tensor

    return read
