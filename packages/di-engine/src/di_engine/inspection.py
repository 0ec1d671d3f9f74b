"""What a checkpoint, or a configuration alone, amounts to: sizes, roles, parts, cache layout, memory. No printing.

Nothing here reads a weight: numbers follow from the configuration, and a checkpoint's index and shard headers (or a
listing of its tensors) are matched against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from di_cache import CacheLayout, Region
from di_model.cache_spec import cache_spec
from di_model.checkpoint import INDEX_FILE, SINGLE_FILE, open_plan
from di_model.config import ModelConfig
from di_model.numerics import Numerics
from di_model.plan import CheckpointPlan, plan_checkpoint, read_listing
from di_model.summary import ModelSummary, summarize

DEFAULT_TOKENS = (4_096, 32_768, 131_072, 1_048_576)
"""Context lengths of the memory table when none is asked for; those beyond the model's positions are left out."""


@dataclass(frozen=True)
class LayerCache:
    """Where one layer's records lie: byte offset and size of its regions in a block and in a slot (None: no such)."""

    layer: int
    index: Region | None
    entries: Region | None
    window: Region
    compress: Region | None


@dataclass(frozen=True)
class CacheFacts:
    """Layout of the caches; see :class:`di_cache.CacheLayout`."""

    numerics: Numerics
    block_size: int
    block_bytes: int
    slot_bytes: int
    stored_bytes: int
    window_cells: int
    compress_cells: int
    layers: tuple[LayerCache, ...]


@dataclass(frozen=True)
class ContextMemory:
    """Bytes that one running sequence of ``tokens`` tokens takes: its blocks and its state slot."""

    tokens: int
    blocks: int
    block_bytes: int
    slot_bytes: int

    @property
    def total_bytes(self) -> int:
        """Blocks and slot together."""
        return self.blocks * self.block_bytes + self.slot_bytes


@dataclass(frozen=True)
class Coverage:
    """A listing or a directory whose tensors match the configuration one by one."""

    source: str
    tensors: int
    nbytes: int
    shards: int


@dataclass(frozen=True)
class Inspection:
    """Everything that ``di inspect`` reports. ``coverage`` is None for a bare configuration."""

    config: ModelConfig
    summary: ModelSummary
    cache: CacheFacts
    memory: tuple[ContextMemory, ...]
    coverage: Coverage | None


def inspect_model(
    path: Path,
    *,
    listing: Path | None = None,
    tokens: Sequence[int] = (),
    numerics: Numerics = Numerics.RELEASE,
    block_size: int = 128,
) -> Inspection:
    """Inspect a checkpoint directory or a ``config.json``.

    Args:
        path: a directory with ``config.json``, or the file itself. When the directory holds weights, every tensor
            is checked against the configuration by its name, dtype, shape and place, from headers alone.
        listing: table of tensors to match with the configuration instead (see :func:`di_model.plan.read_listing`).
        tokens: context lengths for the memory table; empty: a few usual ones.
        numerics: number formats of the caches.
        block_size: tokens per cache block.

    Raises:
        FileNotFoundError: nothing at ``path``.
        ConfigError: the configuration is not that of a supported model.
        CheckpointError: tensors do not match the configuration; every problem is named.
        CacheConfigError: ``block_size`` or a context length is out of range.
    """
    config = ModelConfig.from_file(path)
    layout = CacheLayout.from_spec(cache_spec(config, numerics, block_size=block_size))
    most = config.text.max_position_embeddings
    lengths = tuple(tokens) or tuple(n for n in DEFAULT_TOKENS if n <= most) or (most,)
    return Inspection(
        config=config,
        summary=summarize(config),
        cache=_cache_facts(layout, numerics),
        memory=tuple(
            ContextMemory(n, layout.blocks_for(n), layout.block_bytes, layout.slot_bytes) for n in lengths
        ),
        coverage=_coverage(path, config, listing),
    )


def _cache_facts(layout: CacheLayout, numerics: Numerics) -> CacheFacts:
    return CacheFacts(
        numerics=numerics,
        block_size=layout.spec.block_size,
        block_bytes=layout.block_bytes,
        slot_bytes=layout.slot_bytes,
        stored_bytes=layout.stored_bytes,
        window_cells=layout.window_cells,
        compress_cells=layout.compress_cells,
        layers=tuple(LayerCache(r.layer, r.index, r.entries, r.window, r.compress) for r in layout.layers),
    )


def _coverage(path: Path, config: ModelConfig, listing: Path | None) -> Coverage | None:
    if listing is not None:
        plan = plan_checkpoint(config, read_listing(listing), source=str(listing))
        return _covered(str(listing), plan)
    if path.is_dir() and _has_weights(path):
        return _covered(str(path), open_plan(path, config))
    return None


def _has_weights(directory: Path) -> bool:
    named = any((directory / name).exists() for name in (INDEX_FILE, SINGLE_FILE))
    return named or any(directory.glob("*.safetensors"))


def _covered(source: str, plan: CheckpointPlan) -> Coverage:
    return Coverage(source, plan.num_tensors, plan.num_bytes, len(plan.shards))
