"""CPU kernels of the sampling family."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels import _native
from di_kernels.cpu.arrays import empty
from di_kernels.ops.sampling import DrawPurpose


def philox(seeds: Tensor, positions: Tensor, purpose: DrawPurpose, count: int) -> Tensor:
    """See :func:`di_kernels.ops.sampling.philox`."""
    out = empty(seeds.shape[0], count, dtype=torch.int64)
    _native.philox(seeds.contiguous(), positions.contiguous(), int(purpose), out)
    return out


def all_finite(logits: Tensor) -> Tensor:
    """See :func:`di_kernels.ops.sampling.all_finite`."""
    out = empty(logits.shape[0], dtype=torch.bool)
    _native.all_finite(_rows(logits), out)
    return out


def argmax(logits: Tensor) -> Tensor:
    """See :func:`di_kernels.ops.sampling.argmax`."""
    out = empty(logits.shape[0], dtype=torch.int64)
    _native.argmax(_rows(logits), out)
    return out


def log_softmax(logits: Tensor) -> Tensor:
    """See :func:`di_kernels.ops.sampling.log_softmax`."""
    out = empty(*logits.shape, dtype=torch.float32)
    _native.log_softmax(_rows(logits), out)
    return out


def describe_tokens(logits: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See :func:`di_kernels.ops.sampling.describe_tokens`."""
    count = logits.shape[0]
    logprobs = empty(count, dtype=torch.float32)
    ranks = empty(count, dtype=torch.int64)
    top_ids = empty(count, k, dtype=torch.int64)
    top_logprobs = empty(count, k, dtype=torch.float32)
    _native.describe_tokens(_rows(logits), ids.contiguous(), logprobs, ranks, top_ids, top_logprobs)
    return logprobs, ranks, top_ids, top_logprobs


def apply_penalties(
    logits: Tensor,
    row_starts: Tensor,
    token_ids: Tensor,
    output_counts: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """See :func:`di_kernels.ops.sampling.apply_penalties`."""
    _native.apply_penalties(
        logits,
        row_starts.contiguous(),
        token_ids.contiguous(),
        output_counts.contiguous(),
        repetition.contiguous(),
        presence.contiguous(),
        frequency.contiguous(),
    )


def apply_bias(logits: Tensor, row_starts: Tensor, token_ids: Tensor, values: Tensor) -> None:
    """See :func:`di_kernels.ops.sampling.apply_bias`."""
    _native.apply_bias(logits, row_starts.contiguous(), token_ids.contiguous(), values.contiguous())


def apply_bitmask(logits: Tensor, bitmask: Tensor, rows: Tensor | None) -> None:
    """See :func:`di_kernels.ops.sampling.apply_bitmask`."""
    words = bitmask if bitmask.dtype is torch.int32 else bitmask.view(torch.int32)
    _native.apply_bitmask(logits, _rows(words), None if rows is None else rows.contiguous())


def choose(
    logits: Tensor, parameters: Tensor, positions: Tensor, rows: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See :func:`di_kernels.ops.sampling.choose`."""
    tokens = empty(positions.shape[0], dtype=torch.int64)
    finite = empty(positions.shape[0], dtype=torch.bool)
    _native.choose(
        _rows(logits),
        parameters.contiguous(),
        positions.contiguous(),
        None if rows is None else rows.contiguous(),
        tokens,
        finite,
    )
    return tokens, finite


def _rows(matrix: Tensor) -> Tensor:
    """The matrix with dense rows; a slice of rows or columns is taken as it lies."""
    return matrix if matrix.stride(1) == 1 else matrix.contiguous()
