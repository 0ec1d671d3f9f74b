"""Keys on their way into a cache: norm, rotation, quantization and store (attention specification, 5, 7 and 8.1)."""

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
    check_kind,
    check_multiple,
    check_shape,
    check_tensors,
)
from di_kernels.ops.formats import EntryFormat


@dataclass(frozen=True, eq=False)
class KeyTransform:
    """What turns projected rows into keys: RMS norm, then rotation of the last dimensions.

    Attributes:
        weight: ``[dim]`` bfloat16 or float32, of the norm.
        eps: of the norm.
        table: float32 ``[positions, rotary dimensions]`` of :func:`di_kernels.ops.rope.rope_table`.
    """

    weight: Tensor
    eps: float
    table: Tensor


@dataclass(frozen=True, eq=False)
class KeyPages:
    """Pages of records: ``values [blocks, entries, bytes]``, the scales of a record behind its values or in ``scales
    [blocks, entries, bytes]``; uint8, or float32 values for FLOAT32. Slices of larger arrays are fine."""

    values: Tensor
    scales: Tensor | None = None


def key_records(x: Tensor, positions: Tensor, transform: KeyTransform, entry: EntryFormat) -> Tensor:
    """Records of ``apply_rope(rms_norm(x))``, one a row: the bits of these operations and ``encode_records``.

    Args:
        x: ``[rows, dim]`` bfloat16 or float32.
        positions: int32 ``[rows]``, each within the table.
        transform: see :class:`KeyTransform`.
        entry: format of the records; ``dim`` is a multiple of its group.

    Returns:
        uint8 ``[rows, record_bytes]``, or float32 ``[rows, dim]`` for FLOAT32.

    Raises:
        IndexError: a position outside the table; nothing is computed then.
    """
    _check(x, positions, transform, entry)
    return cast(Tensor, kernel("cache", "key_records", x)(x, positions, transform, entry))


def store_keys(
    x: Tensor,
    positions: Tensor,
    transform: KeyTransform,
    entry: EntryFormat,
    pages: KeyPages,
    block: Tensor,
    place: Tensor,
) -> Tensor:
    """Writes :func:`key_records` of row ``r`` into entry ``place[r]`` of block ``block[r]``.

    Args:
        x, positions, transform, entry: see :func:`key_records`.
        pages: changed in place. No two rows go to one entry.
        block, place: int32 ``[rows]``, within the pages.

    Returns:
        ``rms_norm(x)``, the rows before rotation, like ``x``.

    Raises:
        IndexError: a position outside the table, or a place outside the pages; nothing is written then.
    """
    _check(x, positions, transform, entry)
    check_kind("pages", pages, KeyPages)
    check_shape("pages.values", pages.values, None, None, None)
    check_dtype("pages.values", pages.values, torch.float32 if entry is EntryFormat.FLOAT32 else torch.uint8)
    if pages.scales is not None:
        check_shape("pages.scales", pages.scales, *pages.values.shape[:2], None)
        check_dtype("pages.scales", pages.scales, torch.uint8)
    for name, index in (("block", block), ("place", place)):
        check_dtype(name, index, torch.int32)
        check_shape(name, index, x.shape[0])
    return cast(
        Tensor,
        kernel("cache", "store_keys", x)(x, positions, transform, entry, pages, block, place),
    )


def _check(x: Tensor, positions: Tensor, transform: KeyTransform, entry: EntryFormat) -> None:
    check_kind("transform", transform, KeyTransform)
    check_kind("entry", entry, EntryFormat)
    check_tensors("transform", transform, "weight", "table")
    check_epsilon("transform.eps", transform.eps)
    check_dtype("x", x, *ACTIVATIONS)
    check_shape("x", x, None, None)
    check_dtype("transform.weight", transform.weight, *ACTIVATIONS)
    check_shape("transform.weight", transform.weight, x.shape[1])
    check_dtype("transform.table", transform.table, torch.float32)
    check_shape("transform.table", transform.table, None, None)
    check_dtype("positions", positions, torch.int32)
    check_shape("positions", positions, x.shape[0])
    check_multiple("the last dimension of x", x.shape[1], entry.group)
    if x.shape[1] < transform.table.shape[1]:
        raise ValueError(
            f"x has width {x.shape[1]}; it must be at least the {transform.table.shape[1]} rotary dimensions"
        )
