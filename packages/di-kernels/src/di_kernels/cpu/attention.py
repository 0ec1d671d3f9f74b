"""CPU kernels of the attention family."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels import _native
from di_kernels.ops.attention import EntryKeys, WindowKeys


def sparse_attention(
    q: Tensor, window: WindowKeys, entries: EntryKeys | None, sink: Tensor, scale: float
) -> Tensor:
    """See :func:`di_kernels.ops.attention.sparse_attention`."""
    q = q.contiguous()
    out = torch.empty_like(q)
    _native.sparse_attention(
        q,
        _window(window),
        None if entries is None else _entries(entries),
        sink.contiguous(),
        scale,
        out,
    )
    return out


def gathered_attention(q: Tensor, keys: Tensor, index: Tensor, sink: Tensor, scale: float) -> Tensor:
    """See :func:`di_kernels.ops.attention.gathered_attention`."""
    q = q.contiguous()
    out = torch.empty_like(q)
    if keys.stride(1) != 1:
        keys = keys.contiguous()
    _native.gathered_attention(q, keys, index.contiguous(), sink.contiguous(), scale, out)
    return out


def _window(
    window: WindowKeys,
) -> tuple[Tensor, Tensor, str, Tensor, Tensor, Tensor, Tensor, Tensor, int]:
    """Arguments of the native function; records are read in place, only the row arrays are made dense."""
    return (
        window.ring,
        window.fresh,
        window.entry.value,
        window.slot.contiguous(),
        window.split.contiguous(),
        window.fresh_start.contiguous(),
        window.begin.contiguous(),
        window.end.contiguous(),
        window.width,
    )


def _entries(entries: EntryKeys) -> tuple[Tensor, str, Tensor, Tensor, Tensor]:
    return (
        entries.pages,
        entries.entry.value,
        entries.block_table.contiguous(),
        entries.sequence.contiguous(),
        entries.selected.contiguous(),
    )
