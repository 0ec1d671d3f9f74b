"""Memory of the host for what is large: weights and caches."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels import _native
from di_kernels.ops.checks import check_kind, check_number

__all__ = ["allocate"]

_LARGE_PAGE = 2 << 20


def allocate(nbytes: int) -> Tensor:
    """Uninitialised memory, uint8 ``[nbytes]``, at a multiple of 2 MB, in pages of 2 MB where the system has them.

    On a machine of several memory nodes these lie on all nodes in turn, unless the process was started with another
    policy (``numactl``).

    Raises:
        ValueError: ``nbytes`` is negative.
        MemoryError: the system has not so much.
    """
    check_kind("nbytes", nbytes, int)
    check_number("nbytes", nbytes, 0, 2**63 - 1 - _LARGE_PAGE)
    try:
        whole = torch.empty(nbytes + _LARGE_PAGE, dtype=torch.uint8, device="cpu")
    except RuntimeError as error:
        raise MemoryError(f"nbytes is {nbytes}, more than the system gives") from error
    start = -whole.data_ptr() % _LARGE_PAGE
    memory = whole[start : start + nbytes]
    _native.advise_pages(memory)
    return memory
