"""The examples are modules of the repository root: ``examples.nano``. Its steps are too small for two threads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import di_kernels
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Puts the process's counts back."""
    native, library = di_kernels.num_threads(), torch.get_num_threads()
    di_kernels.set_num_threads(1)
    torch.set_num_threads(1)
    yield
    di_kernels.set_num_threads(native)
    torch.set_num_threads(library)
