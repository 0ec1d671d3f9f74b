"""CPU kernels of the engram family."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels import _native
from di_kernels.cpu.arrays import empty
from di_kernels.ops.engram import EngramHash, EngramTable


def engram_windows(tokens: Tensor, vocabulary: Tensor, pad: int) -> Tensor:
    """See :func:`di_kernels.ops.engram.engram_windows`."""
    windows = empty(*tokens.shape, dtype=torch.int64)
    _native.engram_windows(tokens.contiguous(), vocabulary, pad, windows)
    return windows


def engram_hash(windows: Tensor, constants: EngramHash) -> Tensor:
    """See :func:`di_kernels.ops.engram.engram_hash`."""
    ids = empty(windows.shape[0], constants.offsets.shape[0], dtype=torch.int64)
    _native.engram_hash(windows.contiguous(), constants.multipliers, constants.primes, constants.offsets, ids)
    return ids


def engram_gather(ids: Tensor, table: EngramTable, dtype: torch.dtype) -> Tensor:
    """See :func:`di_kernels.ops.engram.engram_gather`."""
    y = empty(ids.shape[0], ids.shape[1] * table.data.shape[-1], dtype=dtype)
    _native.engram_gather(ids.contiguous(), table.data, table.scale, y)
    return y


def engram_inject(
    stream: Tensor, kv: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, active: Tensor
) -> Tensor:
    """See :func:`di_kernels.ops.engram.engram_inject`."""
    out = empty(*stream.shape, dtype=stream.dtype)
    weight = q_weight.to(torch.float32) * k_weight.to(torch.float32)
    _native.engram_inject(stream.contiguous(), kv.contiguous(), weight, active.contiguous(), eps, out)
    return out
