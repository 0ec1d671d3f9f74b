"""CPU kernels of the rope family."""

from __future__ import annotations

from torch import Tensor

from di_kernels import _native
from di_kernels.cpu.arrays import empty


def apply_rope(x: Tensor, positions: Tensor, table: Tensor, inverse: bool) -> Tensor:
    """See :func:`di_kernels.ops.rope.apply_rope`."""
    y = empty(*x.shape, dtype=x.dtype)
    _native.apply_rope(x.contiguous(), positions.contiguous(), table.contiguous(), y, inverse)
    return y
