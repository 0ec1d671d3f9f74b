"""Token embedding (backbone specification, 2.1)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from di_kernels.dispatch import kernel
from di_kernels.ops.checks import ACTIVATIONS, check_dtype, check_result_type, check_shape


def embed(ids: Tensor, table: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of the embedding table; an id outside it (negative or too large) gives a zero row.

    Args:
        ids: int32 ``[rows]``.
        table: bfloat16 or float32 ``[vocab, dim]``.
        dtype: type of the result.

    Returns:
        ``[rows, dim]`` of ``dtype``.
    """
    check_dtype("ids", ids, torch.int32)
    check_dtype("table", table, *ACTIVATIONS)
    check_shape("ids", ids, None)
    check_shape("table", table, None, None)
    check_result_type("dtype", dtype)
    return cast(Tensor, kernel("embedding", "embed", table)(ids, table, dtype))
