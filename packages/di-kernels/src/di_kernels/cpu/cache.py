"""CPU kernels of the cache family."""

from __future__ import annotations

import torch
from torch import Tensor

from di_kernels import _native
from di_kernels.cpu.arrays import empty
from di_kernels.ops.cache import KeyPages, KeyTransform
from di_kernels.ops.formats import EntryFormat


def key_records(x: Tensor, positions: Tensor, transform: KeyTransform, entry: EntryFormat) -> Tensor:
    """See :func:`di_kernels.ops.cache.key_records`."""
    rows, dim = x.shape
    if entry is EntryFormat.FLOAT32:
        records = empty(1, rows, dim, dtype=torch.float32)
    else:
        records = empty(1, rows, entry.record_bytes(dim), dtype=torch.uint8)
    _store(x, positions, transform, entry, KeyPages(records), None, None)
    return records[0]


def store_keys(
    x: Tensor,
    positions: Tensor,
    transform: KeyTransform,
    entry: EntryFormat,
    pages: KeyPages,
    block: Tensor,
    place: Tensor,
) -> Tensor:
    """See :func:`di_kernels.ops.cache.store_keys`."""
    normalised = empty(*x.shape, dtype=x.dtype)
    _store(x, positions, transform, entry, pages, (block.contiguous(), place.contiguous()), normalised)
    return normalised


def _store(
    x: Tensor,
    positions: Tensor,
    transform: KeyTransform,
    entry: EntryFormat,
    pages: KeyPages,
    at: tuple[Tensor, Tensor] | None,
    normalised: Tensor | None,
) -> None:
    _native.store_keys(
        x.contiguous(),
        transform.weight.to(torch.float32),
        transform.eps,
        positions.contiguous(),
        transform.table.contiguous(),
        entry.value,
        pages.values,
        pages.scales,
        at,
        normalised,
    )
