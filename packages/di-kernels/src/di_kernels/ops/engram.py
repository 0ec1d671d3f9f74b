"""Engram, the hashed n-gram memory (backbone specification, 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from di_kernels.dispatch import kernel
from di_kernels.ops.checks import (
    ACTIVATIONS,
    check_dtype,
    check_epsilon,
    check_integer,
    check_kind,
    check_result_type,
    check_shape,
    check_tensors,
)


@dataclass(frozen=True, eq=False)
class EngramHash:
    """Constants of one layer's hash, int64: ``multipliers [n]``, ``primes [n-1, heads]``, ``offsets [(n-1)*heads]``."""

    multipliers: Tensor
    primes: Tensor
    offsets: Tensor


@dataclass(frozen=True, eq=False)
class EngramTable:
    """Rows of the n-gram memory: FP8 codes uint8 ``[rows, dim]`` with UE8M0 scales uint8 ``[rows, dim/32]``,
    or plain bfloat16/float32 ``[rows, dim]`` without scales."""

    data: Tensor
    scale: Tensor | None = None


def engram_windows(tokens: Tensor, vocabulary: Tensor, pad: int) -> Tensor:
    """Compressed n-gram context of each row (5.1, 5.2).

    Args:
        tokens: int32 ``[rows, n]``; column ``k`` is the token ``k`` positions back, -1 before the sequence start.
        vocabulary: int32 ``[ids]`` compressed id of each token id. An id outside it (an image position) is a barrier.
        pad: compressed id of the padding token.

    Returns:
        int64 ``[rows, n]``: column ``k`` the compressed id, or ``pad`` at and beyond the first barrier; column 0 is -1
        for a row that is itself outside the vocabulary.
    """
    check_dtype("tokens", tokens, torch.int32)
    check_dtype("vocabulary", vocabulary, torch.int32)
    check_shape("tokens", tokens, None, None)
    check_shape("vocabulary", vocabulary, None)
    check_integer("pad", pad)
    return cast(Tensor, kernel("engram", "engram_windows", tokens)(tokens, vocabulary, pad))


def engram_hash(windows: Tensor, constants: EngramHash) -> Tensor:
    """Table rows of each n-gram (5.3): int64 ``[rows, (n-1)*heads]``, all -1 where column 0 of the window is -1.

    Args:
        windows: int64 ``[rows, n]`` of :func:`engram_windows`.
        constants: the layer's hash constants.
    """
    check_dtype("windows", windows, torch.int64)
    check_kind("constants", constants, EngramHash)
    check_tensors("constants", constants, "primes", "offsets")
    check_shape("constants.multipliers", constants.multipliers, None)
    check_shape("windows", windows, None, constants.multipliers.shape[0])
    check_shape("constants.primes", constants.primes, max(windows.shape[1] - 1, 0), None)
    check_shape("constants.offsets", constants.offsets, constants.primes.numel())
    return cast(Tensor, kernel("engram", "engram_hash", windows)(windows, constants))


def engram_gather(ids: Tensor, table: EngramTable, dtype: torch.dtype) -> Tensor:
    """Concatenated table rows of each token (5.5), de-quantized exactly; zeros for negative ids.

    Args:
        ids: int64 ``[rows, columns]``.
        table: the memory.
        dtype: bfloat16 or float32.

    Returns:
        ``[rows, columns*dim]`` of ``dtype``.

    Raises:
        IndexError: an id beyond the table; nothing is computed then.
    """
    check_dtype("ids", ids, torch.int64)
    check_shape("ids", ids, None, None)
    check_kind("table", table, EngramTable)
    check_shape("table.data", table.data, None, None)
    if table.scale is not None:
        check_tensors("table", table, "scale")
    check_result_type("dtype", dtype)
    return cast(Tensor, kernel("engram", "engram_gather", ids)(ids, table, dtype))


def engram_inject(
    stream: Tensor, kv: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, active: Tensor
) -> Tensor:
    """Gate and add the looked-up value to every stream (5.6).

    Args:
        stream: ``[rows, m, dim]`` bfloat16 or float32.
        kv: ``[rows, (m+1)*dim]`` in the type of ``stream``: one key a stream, then the shared value.
        q_weight, k_weight: ``[m, dim]`` bfloat16 or float32.
        eps: of the RMS statistics.
        active: bool ``[rows]``; other rows pass unchanged.

    Returns:
        A new trunk like ``stream``.
    """
    check_dtype("stream", stream, *ACTIVATIONS)
    check_shape("stream", stream, None, None, None)
    rows, m, dim = stream.shape
    check_dtype("kv", kv, stream.dtype)
    check_shape("kv", kv, rows, (m + 1) * dim)
    for name, weight in (("q_weight", q_weight), ("k_weight", k_weight)):
        check_dtype(name, weight, *ACTIVATIONS)
        check_shape(name, weight, m, dim)
    check_epsilon("eps", eps)
    check_dtype("active", active, torch.bool)
    check_shape("active", active, rows)
    return cast(
        Tensor, kernel("engram", "engram_inject", stream)(stream, kv, q_weight, k_weight, eps, active)
    )
