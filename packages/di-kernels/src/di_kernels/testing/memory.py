"""Tensors with equal values in awkward memory: gaps between rows or elements, addresses that are not aligned."""

from __future__ import annotations

import torch
from torch import Tensor


def with_row_gaps(tensor: Tensor, gap: int = 5) -> Tensor:
    """The values of ``tensor``, each slice of the last dimension dense and ``gap`` unrelated elements between them."""
    padded = torch.full((*tensor.shape[:-1], tensor.shape[-1] + gap), 77).to(tensor.dtype)
    view = padded[..., : tensor.shape[-1]]
    view.copy_(tensor)
    return view


def with_gaps(tensor: Tensor) -> Tensor:
    """The values of ``tensor`` with an unrelated element behind each (a last stride of two)."""
    padded = torch.full((*tensor.shape, 2), 77).to(tensor.dtype)
    view = padded[..., 0]
    view.copy_(tensor)
    return view


def misaligned(tensor: Tensor) -> Tensor:
    """The values of ``tensor`` at an odd address, as a memory-mapped checkpoint may place them.

    Read-only by convention: safetensors promises no alignment beyond the byte.
    """
    raw = (
        tensor.contiguous().reshape(-1).view(torch.uint8)
        if tensor.numel()
        else torch.empty(0, dtype=torch.uint8)
    )
    buffer = bytearray(raw.numel() + 1)
    buffer[1:] = raw.numpy().tobytes()
    if tensor.numel() == 0:
        return torch.empty_like(tensor)
    return torch.frombuffer(buffer, dtype=tensor.dtype, offset=1, count=tensor.numel()).reshape(tensor.shape)
