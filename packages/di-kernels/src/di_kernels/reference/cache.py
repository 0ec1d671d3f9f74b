"""Reference of the cache family: the operations it is composed of, one after the other."""

from __future__ import annotations

from torch import Tensor

from di_kernels.ops.cache import KeyPages, KeyTransform
from di_kernels.ops.formats import EntryFormat
from di_kernels.reference.formats import encode_records
from di_kernels.reference.norm import rms_norm
from di_kernels.reference.rope import apply_rope


def key_records(x: Tensor, positions: Tensor, transform: KeyTransform, entry: EntryFormat) -> Tensor:
    """See :func:`di_kernels.ops.cache.key_records`."""
    return _records(rms_norm(x, transform.weight, transform.eps), positions, transform, entry)


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
    normalised = rms_norm(x, transform.weight, transform.eps)
    records = _records(normalised, positions, transform, entry)
    at = (block.long(), place.long())
    if pages.scales is None:
        pages.values[at] = records
    else:
        split = entry.value_bytes(x.shape[1])
        pages.values[at], pages.scales[at] = records[:, :split], records[:, split:]
    return normalised


def _records(normalised: Tensor, positions: Tensor, transform: KeyTransform, entry: EntryFormat) -> Tensor:
    rotated = apply_rope(normalised.unsqueeze(1), positions, transform.table, inverse=False).squeeze(1)
    return encode_records(rotated, entry)
