"""Reference of the rope family (attention specification, 3.5)."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_rope(x: Tensor, positions: Tensor, table: Tensor, inverse: bool) -> Tensor:
    """See :func:`di_kernels.ops.rope.apply_rope`."""
    dim = table.shape[1]
    rows = table[positions.long()][:, None, :]
    cos, sin = rows[..., : dim // 2], rows[..., dim // 2 :]
    if inverse:
        sin = -sin
    plain, rotary = x[..., :-dim], x[..., -dim:].to(torch.float32)
    x0, x1 = rotary[..., 0::2], rotary[..., 1::2]
    rotated = torch.stack([x0 * cos - x1 * sin, x0 * sin + x1 * cos], dim=-1).flatten(-2)
    return torch.cat([plain, rotated.to(x.dtype)], dim=-1)
