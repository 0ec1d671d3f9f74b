"""Reference of the attention family (attention specification, 10.1 and 10.2)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from di_kernels.ops.attention import PIECE, EntryKeys, WindowKeys
from di_kernels.reference.formats import decode_records
from di_kernels.reference.linear import accumulator


def sparse_attention(
    q: Tensor, window: WindowKeys, entries: EntryKeys | None, sink: Tensor, scale: float
) -> Tensor:
    """See :func:`di_kernels.ops.attention.sparse_attention`."""
    keys, present = _window(window, q.dtype)
    if entries is not None:
        # Entries start at a column that depends neither on the row nor on its neighbours.
        missing = window.width - keys.shape[1]
        keys, present = functional.pad(keys, (0, 0, 0, missing)), functional.pad(present, (0, missing))
        more, there = _entries(entries, q.dtype)
        keys, present = torch.cat([keys, more], dim=1), torch.cat([present, there], dim=1)
    # An absent record may decode to NaN, which a zero probability would not silence.
    keys = torch.where(present[..., None], keys, torch.zeros((), dtype=keys.dtype, device=keys.device))
    return _attend(q, lambda columns: keys[:, columns], present, sink, scale)


def gathered_attention(q: Tensor, keys: Tensor, index: Tensor, sink: Tensor, scale: float) -> Tensor:
    """See :func:`di_kernels.ops.attention.gathered_attention`."""
    present = index >= 0
    with_absent = functional.pad(keys, (0, 0, 0, 1))  # one zero row more, which absent columns read
    row = torch.where(present, index, len(keys)).long()
    return _attend(q, lambda columns: with_absent[row[:, columns]], present, sink, scale)


def _window(window: WindowKeys, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys ``[rows, n, dim]`` of positions ``begin..`` and whether each is before ``end``."""
    width = max(int((window.end - window.begin).max()), 0) if window.end.numel() else 0
    position = window.begin.long()[:, None] + torch.arange(width, device=window.begin.device)
    present = position < window.end[:, None]
    in_ring = position < window.split[:, None]
    cell = (position % window.ring.shape[1])[..., None]
    ring = window.ring[window.slot.long()[:, None, None], cell].squeeze(2)
    row = window.fresh_start.long()[:, None] + position - window.split[:, None]
    fresh = window.fresh[torch.where(present & ~in_ring, row, 0)]
    records = torch.where(in_ring[..., None], ring, fresh)
    return decode_records(records, window.entry, dtype), present


def _entries(entries: EntryKeys, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys ``[rows, k, dim]`` of the selected entries and whether each is one."""
    per_block = entries.pages.shape[1]
    present = entries.selected >= 0
    number = torch.where(present, entries.selected, 0).long()
    block = entries.block_table[entries.sequence.long()[:, None], number // per_block].long()
    return decode_records(entries.pages[block, number % per_block], entries.entry, dtype), present


def _attend(
    q: Tensor, keys: Callable[[slice], Tensor], present: Tensor, sink: Tensor, scale: float
) -> Tensor:
    """Softmax over the keys ``[rows, columns, dim]`` where ``present [rows, n]``, with the sink, in pieces of 64.

    Absent keys are zeros. Columns behind the last one that any row has change nothing and are not looked at.
    """
    rows, heads, dim = q.shape
    wide = accumulator(q)
    denominator = torch.zeros(rows, heads, dtype=torch.float32, device=q.device)
    maximum = torch.full_like(denominator, -torch.inf)
    output = torch.zeros(rows, heads, dim, dtype=torch.float32, device=q.device)
    used = present.any(dim=0).nonzero()
    for start in range(0, int(used.max()) + 1 if used.numel() else 0, PIECE):
        columns = slice(start, start + PIECE)
        piece, there = keys(columns), present[:, None, columns]
        logits = torch.einsum("rhd,rnd->rhn", q.to(wide), piece.to(wide)).to(torch.float32) * scale
        logits = torch.where(there, logits, -torch.inf)
        grown = torch.maximum(maximum, logits.amax(dim=2))
        # A row without keys so far keeps its maximum at -inf; the differences below must not become NaN.
        base = torch.where(grown == -torch.inf, 0.0, grown)
        probability = torch.exp(logits - base[..., None])
        rescale = torch.exp(maximum - base)
        denominator = denominator * rescale + probability.sum(dim=2)
        rounded = probability.to(q.dtype).to(wide)
        product = torch.einsum("rhn,rnd->rhd", rounded, piece.to(wide)).to(torch.float32)
        output = output * rescale[..., None] + product
        maximum = grown
    any_key = (maximum != -torch.inf)[..., None]  # a NaN among the logits is a key too
    base = torch.where(any_key[..., 0], maximum, 0.0)
    denominator = denominator + torch.exp(sink - base)
    return torch.where(any_key, output / denominator[..., None], 0.0).to(q.dtype)
