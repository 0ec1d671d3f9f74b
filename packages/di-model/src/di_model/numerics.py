"""The two numerics of the model, chosen at load (backbone specification, 0)."""

from __future__ import annotations

import enum

import torch


class Numerics(enum.Enum):
    """How values are rounded on their way through the model."""

    RELEASE = "release"
    """What the released code does: bfloat16 activations, MXFP8 before quantized weights, FP8 and FP4 caches."""
    FLOAT32 = "float32"
    """Nothing is rounded or quantized and caches hold float32: for holding every path to exact values."""

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the activations."""
        return torch.bfloat16 if self is Numerics.RELEASE else torch.float32
