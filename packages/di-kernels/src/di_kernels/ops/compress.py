"""Pooling of two tokens into one compressed entry (attention specification, 7.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from di_kernels.dispatch import kernel
from di_kernels.ops.checks import check_dtype, check_kind, check_result_type, check_shape, check_tensors


@dataclass(frozen=True)
class PairRows:
    """Which rows complete a pair, int32 ``[pairs]`` each.

    Attributes:
        last: row of this step that holds the pair's second token.
        first: row of this step that holds the first token, or -1 when an earlier step computed it.
        slot: state slot of the sequence.
        cell: ring cell of the first token (read where ``first`` is -1).
    """

    last: Tensor
    first: Tensor
    slot: Tensor
    cell: Tensor


def compress_pairs(fresh: Tensor, ring: Tensor, rows: PairRows, dtype: torch.dtype) -> Tensor:
    """Softmax-pool each pair channel by channel.

    ``m = max(s0, s1)``, ``e_t = exp(s_t - m)``, ``(l0*(e0/(e0+e1)) + l1*(e1/(e0+e1)))``, rounded once.

    Args:
        fresh: float32 ``[rows, 2, dim]`` of this step: component 0 the score, 1 the latent.
        ring: float32 ``[slots, cells, 2, dim]`` of earlier steps (may be a strided view of a state pool).
        rows: see :class:`PairRows`.
        dtype: bfloat16 or float32.

    Returns:
        ``[pairs, dim]`` of ``dtype``.

    Raises:
        IndexError: a row, slot or cell outside its array; nothing is computed then.
    """
    check_dtype("fresh", fresh, torch.float32)
    check_dtype("ring", ring, torch.float32)
    check_shape("fresh", fresh, None, 2, None)
    check_shape("ring", ring, None, None, 2, fresh.shape[2])
    check_kind("rows", rows, PairRows)
    check_tensors("rows", rows, "last", "first", "slot", "cell")
    check_result_type("dtype", dtype)
    return cast(Tensor, kernel("compress", "compress_pairs", fresh)(fresh, ring, rows, dtype))
