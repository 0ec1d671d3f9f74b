"""Deterministic selection of the largest scores."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from di_kernels.dispatch import kernel
from di_kernels.ops.checks import ACTIVATIONS, check_dtype, check_positive, check_shape


def topk_indices(scores: Tensor, k: int, lengths: Tensor) -> Tensor:
    """Indices of the ``min(k, length)`` largest scores of each row, in ascending index order.

    Equal scores at the boundary: the lowest index wins. ``-0`` equals ``+0``; NaN counts as ``-inf``.

    Args:
        scores: bfloat16 or float32 ``[rows, n]``.
        k: entries per row, at least 1.
        lengths: int32 ``[rows]``; only the first ``length`` scores of a row take part (clipped to ``n``).

    Returns:
        int32 ``[rows, k]``, filled with -1 behind the selected indices.
    """
    check_dtype("scores", scores, *ACTIVATIONS)
    check_dtype("lengths", lengths, torch.int32)
    check_shape("scores", scores, None, None)
    check_shape("lengths", lengths, scores.shape[0])
    check_positive("k", k)
    return cast(Tensor, kernel("topk", "topk_indices", scores)(scores, k, lengths))
