"""What the reference layers share: the setting of a model, and the state of one forward pass."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from di_kernels.ops.formats import EntryFormat
from di_kernels.ops.linear import LinearWeight
from di_kernels.reference.linear import linear
from di_kernels.reference.norm import rms_norm
from torch import Tensor

from di_model.config import ModelConfig, TextConfig
from di_model.numerics import Numerics
from di_model.projection import quantizes_input
from di_model.rope import RopeTables


@dataclass(frozen=True)
class Setting:
    """Configuration and numerics, and the primitives that follow from them."""

    config: ModelConfig
    numerics: Numerics

    @property
    def text(self) -> TextConfig:
        return self.config.text

    @property
    def window_format(self) -> EntryFormat:
        """Format of window keys (cache specification, 4.2)."""
        return EntryFormat.FP8 if self.numerics is Numerics.RELEASE else EntryFormat.FLOAT32

    @property
    def entry_format(self) -> EntryFormat:
        """Format of compressed entries (cache specification, 4.3)."""
        if self.numerics is Numerics.FLOAT32:
            return EntryFormat.FLOAT32
        return EntryFormat.FP4 if self.text.use_fp4_sparse_kv else EntryFormat.FP8

    @property
    def index_format(self) -> EntryFormat:
        """Format of index queries and keys (cache specification, 4.4)."""
        return EntryFormat.MXFP4 if self.numerics is Numerics.RELEASE else EntryFormat.FLOAT32

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Root-mean-square norm (backbone specification, 2.2)."""
        return rms_norm(x, weight, self.text.rms_norm_eps)

    def project(self, x: Tensor, weight: LinearWeight) -> Tensor:
        """``lin_8`` over a quantized weight in release numerics, else ``lin_bf``: ``[rows, n]`` like ``x``."""
        return linear(x, weight, quantizes_input(weight, self.numerics), x.dtype)


@dataclass(eq=False)
class SequenceState:
    """What the layers of one forward pass over one sequence hand to later layers.

    Attributes:
        ids: int32 ``[T]`` tokens.
        positions: int32 ``[T]``, ``0..T-1``.
        rope: rotary tables of at least ``T`` positions.
        latent: un-rotated latents ``[entries, hd]`` of the latest KV source.
        compressed: compressed entries ``[entries, hd]`` by KV source layer.
        index_keys: index keys ``[entries, di]`` by index-key source layer.
        selected: int32 ``[T, topk]`` selection of the latest index source.
        candidates: int32 ``[T, blocks]`` candidate blocks of the candidate source.
        features: draft features ``[T, D]`` by position in ``dspark_target_layer_ids``.
        window_columns: columns that window keys take in attention. The window's size; the release takes fewer for a
            prompt shorter than the window.
    """

    ids: Tensor
    positions: Tensor
    rope: RopeTables
    window_columns: int
    latent: Tensor | None = None
    compressed: dict[int, Tensor] = field(default_factory=dict)
    index_keys: dict[int, Tensor] = field(default_factory=dict)
    selected: Tensor | None = None
    candidates: Tensor | None = None
    features: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def start(cls, ids: Tensor, config: ModelConfig) -> SequenceState:
        """State before the first layer, for tokens int32 ``[T]``."""
        positions = torch.arange(len(ids), dtype=torch.int32)
        return cls(ids, positions, RopeTables.build(config, len(ids)), config.text.sliding_window)
