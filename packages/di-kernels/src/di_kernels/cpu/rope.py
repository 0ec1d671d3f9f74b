"""CPU kernels of the rope family."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels import _native


def apply_rope(x: Tensor, positions: Tensor, table: Tensor, inverse: bool) -> Tensor:
    """See :func:`di_kernels.ops.rope.apply_rope`. Raises IndexError for a position outside the table."""
    y = torch.empty(x.shape, dtype=x.dtype)
    _native.apply_rope(x.contiguous(), positions.contiguous(), table.contiguous(), y, inverse)
    return y
