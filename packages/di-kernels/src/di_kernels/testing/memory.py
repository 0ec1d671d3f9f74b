"""Tensors with equal values in awkward memory: gaps between rows or elements, misaligned addresses."""

from __future__ import annotations

import torch
from torch import Tensor


def with_row_gaps(tensor: Tensor, gap: int = 5) -> Tensor:
    """The values of ``tensor``: dense slices of the last dimension, ``gap`` other elements between them."""
    padded = torch.full((*tensor.shape[:-1], tensor.shape[-1] + gap), 77, device=tensor.device).to(
        tensor.dtype
    )
    view = padded[..., : tensor.shape[-1]]
    view.copy_(tensor)
    return view


def with_gaps(tensor: Tensor) -> Tensor:
    """The values of ``tensor`` with an unrelated element behind each (a last stride of two)."""
    padded = torch.full((*tensor.shape, 2), 77, device=tensor.device).to(tensor.dtype)
    view = padded[..., 0]
    view.copy_(tensor)
    return view


def misaligned(tensor: Tensor) -> Tensor:
    """The values of ``tensor`` at an odd address, as a memory-mapped checkpoint may place them.

    Read-only by convention: safetensors promises no alignment beyond the byte.
    """
    if tensor.numel() == 0:
        return torch.empty_like(tensor)
    buffer = bytearray(1) + tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return torch.frombuffer(buffer, dtype=tensor.dtype, offset=1, count=tensor.numel()).reshape(tensor.shape)
