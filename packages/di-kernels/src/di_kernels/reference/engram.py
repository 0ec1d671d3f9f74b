"""Reference of the engram family (backbone specification, 5)."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels.ops.engram import EngramHash, EngramTable
from di_kernels.ops.formats import EntryFormat
from di_kernels.reference.formats import decode

GATE_FLOOR = 1e-6
"""Least magnitude under the square root of the gate."""


def engram_windows(tokens: Tensor, vocabulary: Tensor, pad: int) -> Tensor:
    """See :func:`di_kernels.ops.engram.engram_windows`."""
    size = vocabulary.shape[0]
    known = (tokens >= 0) & (tokens < size)
    compressed = vocabulary[tokens.long().clamp(0, size - 1)].long()
    # One unknown token hides everything further back.
    reachable = known.to(torch.int32).cumprod(dim=1).bool()
    windows = torch.where(reachable, compressed, pad)
    windows[:, 0] = torch.where(known[:, 0], windows[:, 0], -1)
    return windows


def engram_hash(windows: Tensor, constants: EngramHash) -> Tensor:
    """See :func:`di_kernels.ops.engram.engram_hash`."""
    mixed = windows[:, 0] * constants.multipliers[0]
    columns = []
    for back in range(1, windows.shape[1]):
        mixed = mixed ^ (windows[:, back] * constants.multipliers[back])
        columns.append(mixed[:, None] % constants.primes[back - 1])
    ids = torch.cat(columns, dim=1) + constants.offsets
    return torch.where(windows[:, :1] < 0, -1, ids)


def engram_gather(ids: Tensor, table: EngramTable, dtype: torch.dtype) -> Tensor:
    """See :func:`di_kernels.ops.engram.engram_gather`."""
    rows = ids.clamp(min=0)
    values = table.data[rows]
    if table.scale is not None:
        values = decode(values, table.scale[rows], EntryFormat.FP8, dtype)
    zero = torch.zeros((), dtype=dtype, device=values.device)
    return torch.where((ids >= 0)[..., None], values.to(dtype), zero).flatten(1)


def engram_inject(
    stream: Tensor, kv: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, active: Tensor
) -> Tensor:
    """See :func:`di_kernels.ops.engram.engram_inject`."""
    m, dim = stream.shape[1], stream.shape[2]
    query = stream.to(torch.float32)
    blocks = kv.to(torch.float32).view(-1, m + 1, dim)
    key, value = blocks[:, :m], blocks[:, m:]
    weight = q_weight.to(torch.float32) * k_weight.to(torch.float32)
    query_rstd = 1.0 / torch.sqrt(query.square().mean(dim=2) + eps)
    key_rstd = 1.0 / torch.sqrt(key.square().mean(dim=2) + eps)
    similarity = (query * weight * key).sum(dim=2) * query_rstd * key_rstd * dim**-0.5
    root = torch.sqrt(similarity.abs().clamp(min=GATE_FLOOR))
    gate = torch.sigmoid(torch.copysign(root, similarity))
    updated = (query + gate[..., None] * value).to(stream.dtype)
    return torch.where(active[:, None, None], updated, stream)
