"""Which parts of the model are at work. Switching one off shows what it carries; a service never does."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from di_model.step import Step


class EntrySelection(enum.Enum):
    """What decides which compressed entries a row attends to."""

    INDEXER = "indexer"
    """The model's indexers."""
    RECENT = "recent"
    """Position alone: the latest ``index_topk`` entries."""
    NONE = "none"
    """Nothing: every layer sees its window only."""


@dataclass(frozen=True)
class Parts:
    """Parts that can be switched off.

    Attributes:
        engram: whether Engram layers add what they remember.
        selection: of compressed entries.
    """

    engram: bool = True
    selection: EntrySelection = EntrySelection.INDEXER


ALL_PARTS = Parts()
"""The model as it was released."""


class Selector(Protocol):
    """What puts the entries that rows attend to into a step; :class:`di_model.indexer.Indexer` is one."""

    def __call__(self, x: Tensor, q_latent: Tensor, step: Step) -> None:
        """Select for rows ``x [rows, hidden]`` with query latents ``q_latent [rows, q_lora_rank]``."""


class RecentEntries:
    """Stands in for an indexer: the latest ``topk`` entries that a row may see, whatever they hold."""

    def __init__(self, ratio: int, topk: int) -> None:
        self.ratio, self.topk = ratio, topk

    def __call__(self, x: Tensor, q_latent: Tensor, step: Step) -> None:
        """Put int32 ``[rows, n]`` entries in ascending order into the step, -1 where a row sees fewer than others."""
        visible = step.batch.entries[self.ratio].visible[:, None]
        most = min(self.topk, max(int(visible.max()) if visible.numel() else 0, 1))
        entries = (visible - most).clamp(min=0) + torch.arange(most, dtype=torch.int32)
        step.selected = torch.where(entries < visible, entries, -1)
