"""What one forward pass carries from layer to layer besides the residual trunk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from di_cache import CachePool
from torch import Tensor

from di_model.batch import Batch


class Observer(Protocol):
    """Sees intermediate values of a forward pass, for verification and tools."""

    def __call__(self, name: str, layer: int, value: Tensor, /) -> None:
        """``value`` has one row per row of the batch, except ``compressed_kv`` and ``index_k`` (one per new entry)."""


@dataclass(eq=False)
class Step:
    """State of one forward pass.

    Attributes:
        batch: the rows.
        cache: pools that the step reads and writes.
        selected: int32 ``[rows, topk]`` entries chosen by the latest index source.
        candidates: int32 ``[rows, blocks]`` candidate blocks of the candidate source.
        latent: ``[entries, head_dim]`` un-rotated latents of the latest KV source's new entries.
        features: draft features by target, each ``[rows, hidden]``.
        observer: sees intermediate values.
    """

    batch: Batch
    cache: CachePool
    selected: Tensor | None = None
    candidates: Tensor | None = None
    latent: Tensor | None = None
    features: dict[int, Tensor] = field(default_factory=dict)
    observer: Observer | None = None

    def observe(self, name: str, layer: int, value: Tensor) -> None:
        """Show a value to the observer, if there is one."""
        if self.observer is not None:
            self.observer(name, layer, value)
