"""Rotary tables of a model: one for window-only and draft layers, one for compressed layers."""

from __future__ import annotations

from dataclasses import dataclass

from di_kernels.ops.rope import YarnScaling, rope_frequencies, rope_table
from torch import Tensor

from di_model.config import ModelConfig
from di_model.topology import LayerRole


@dataclass(frozen=True, eq=False)
class RopeTables:
    """Float32 ``[positions, rope_dim]``, cosines then sines (attention specification, 3.5)."""

    plain: Tensor
    compressed: Tensor

    @classmethod
    def build(cls, config: ModelConfig, positions: int) -> RopeTables:
        """Tables for positions ``0..positions-1``."""
        text, yarn = config.text, config.text.rope_scaling
        scaling = None
        if yarn is not None:
            scaling = YarnScaling(
                yarn.factor, yarn.beta_fast, yarn.beta_slow, yarn.original_max_position_embeddings
            )
        plain = rope_frequencies(text.qk_rope_head_dim, text.rope_theta)
        compressed = rope_frequencies(text.qk_rope_head_dim, text.compress_rope_theta, scaling)
        return cls(rope_table(plain, positions), rope_table(compressed, positions))

    def for_layer(self, role: LayerRole) -> Tensor:
        """The table of a layer."""
        return self.compressed if role.ratio else self.plain
