"""Intermediate values of a forward pass, recorded under the names of the golden files."""

from __future__ import annotations

import enum
from collections.abc import Callable

import torch
from torch import Tensor


class Traced(enum.StrEnum):
    """What a forward pass can record, per layer; ``rows`` is one row per token."""

    IN_STREAM = "in_stream"
    """``[rows, m, D]``: trunk that the attention mixes see, after Engram."""
    IN_MIX = "in_mix"
    """float32 ``[rows, m]``: pre-mix that the attention input is formed with."""
    ATTN_IN = "attn_in"
    """``[rows, D]``: attention input, after its norm."""
    ATTN_OUT = "attn_out"
    """``[rows, D]``: attention output, before the post-mix."""
    FFN_IN = "ffn_in"
    """``[rows, D]``: expert input, after its norm."""
    FFN_OUT = "ffn_out"
    """``[rows, D]``: expert output, before the post-mix."""
    MOE_EXPERT = "moe_expert"
    """int32 ``[rows, k]``: chosen experts, descending rank."""
    MOE_WEIGHT = "moe_weight"
    """float32 ``[rows, k]``: their routing weights."""
    COMPRESSED_KV = "compressed_kv"
    """``[entries, hd]``: compressed entries as attention reads them."""
    INDEX_K = "index_k"
    """``[entries, di]``: index keys as the indexer reads them."""
    TOPK = "topk"
    """int32 ``[rows, topk]``: selected entries ascending, then -1."""
    INDEX_SCORES = "index_scores"
    """float32 ``[rows, entries]``: scores of an index source, -inf for entries that it did not score."""
    CANDIDATES = "candidates"
    """int32 ``[rows, blocks]``: candidate blocks ascending, then -1."""
    ENGRAM_IDS = "engram_ids"
    """int64 ``[rows, columns]``: rows of the n-gram table."""
    ENGRAM_IN = "engram_in"
    """``[rows, m, D]``: trunk before Engram."""
    ENGRAM_OUT = "engram_out"
    """``[rows, m, D]``: trunk after Engram."""
    OUT_STREAM = "out_stream"
    """``[rows, m, D]``: trunk after the layer."""
    OUT_MIX = "out_mix"
    """float32 ``[rows, m]``: pre-mix handed to the next layer."""


Recorder = Callable[[str, int, Tensor], None]
"""Sees a value under its name and layer."""


def ignore(name: str, layer: int, value: Tensor) -> None:
    """The recorder that keeps nothing."""


class Trace:
    """Records values by name and layer. A pass in several steps adds its rows step by step.

    An instance is a :data:`Recorder`: call it with a name, a layer and a value.
    """

    def __init__(self) -> None:
        self._parts: dict[tuple[Traced, int], list[Tensor]] = {}

    def __call__(self, name: str, layer: int, value: Tensor) -> None:
        """Record ``value``; raises ValueError for a name that :class:`Traced` does not have."""
        self._parts.setdefault((Traced(name), layer), []).append(value.detach().clone())

    def __contains__(self, key: tuple[str, int]) -> bool:
        return (Traced(key[0]), key[1]) in self._parts

    def get(self, name: str, layer: int) -> Tensor:
        """Rows recorded for a name and layer, in order; raises KeyError naming both when there are none."""
        parts = self._parts.get((Traced(name), layer))
        if parts is None:
            raise KeyError(f"nothing was recorded as {name!r} of layer {layer}")
        return torch.cat(parts)

    def layers(self, name: str) -> tuple[int, ...]:
        """Layers that recorded ``name``, ascending."""
        return tuple(sorted(layer for kind, layer in self._parts if kind == name))
