"""The two numerics of a forward pass (backbone specification, 0)."""

from __future__ import annotations

import enum

import torch


class Numerics(enum.Enum):
    """Where values are rounded; chosen once, at load."""

    RELEASE = "release"
    """What the released model does: bfloat16 activations, MXFP8 inputs of quantized linears, quantized caches."""
    FLOAT32 = "float32"
    """Nothing is rounded or quantized: weights are expanded, all arithmetic and every cache is float32."""

    @property
    def dtype(self) -> torch.dtype:
        """Element type of activations."""
        return torch.bfloat16 if self is Numerics.RELEASE else torch.float32
