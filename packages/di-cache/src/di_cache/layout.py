"""Where every cached byte lives: entry formats, the block of 128 tokens and the per-sequence state slot.

A *block* holds the index keys and the main compressed KV of all owning layers for ``block_size`` consecutive
tokens. A *slot* holds what one running sequence needs besides blocks: the sliding-window ring of every layer
and the compression ring of every ratio-2 owner. Both are plain bytes; this file computes offsets and sizes,
nothing else.

Source of every rule: cache spec, sections 3 (records), 5 (block) and 7 (slot).
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from di_kernels.errors import shown
from di_kernels.ops.formats import EntryFormat

REGION_ALIGNMENT = 32
"""Bytes that index, main KV and window regions are padded to (cache spec, 5 and 7.2)."""

BLOCK_STRIDE_ALIGNMENT = 128
"""Bytes that the block stride is a multiple of, besides the main record (cache spec, 5)."""

FLOAT32_BYTES = 4


class CacheConfigError(ValueError):
    """A cache setting is out of range. The message names the field, the value and what is allowed."""


class CacheLayoutError(LookupError):
    """A layer was asked for a cache region that it does not own, or does not exist."""


class CacheNumerics(enum.Enum):
    """How entries are stored: in the released quantised formats, or as plain float32 for verification."""

    RELEASE = "release"
    FLOAT32 = "float32"


@dataclass(frozen=True, slots=True)
class LayerCacheSpec:
    """What one layer keeps.

    ``ratio`` is its compress ratio (0 window only, 1, or 2); ``owns_kv`` and ``owns_index`` say whether it
    writes main compressed KV and index keys of its own or reads those of an earlier layer.
    """

    layer: int
    ratio: int
    owns_kv: bool
    owns_index: bool


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """Everything that the cache layout depends on.

    Attributes:
        head_dim: numbers of a key, which all heads share.
        index_head_dim: numbers of an index key.
        window: tokens that sliding-window attention sees, the present one included.
        layers: the backbone layers and then the draft layers, with ids 0, 1, 2, ...
        num_producer_layers: id of the first layer whose window ring a stored state leaves out; the number of all
            layers if none does.
        block_size: tokens of a block, a multiple of every compress ratio.
        max_draft_tokens: the longest speculation: a verify step has one row more, and up to that many rows may be
            rejected after they were stored.
        numerics: the release's formats, or float32 for verification.
        fp4_kv: main compressed KV in FP4 rather than FP8, under the release's numerics.

    Raises:
        CacheConfigError: a field is out of range, or sizes do not fit the entry formats.
    """

    head_dim: int
    index_head_dim: int
    window: int
    layers: tuple[LayerCacheSpec, ...]
    num_producer_layers: int
    block_size: int = 128
    max_draft_tokens: int = 5
    numerics: CacheNumerics = CacheNumerics.RELEASE
    fp4_kv: bool = True

    def __post_init__(self) -> None:
        _require_at_least("head_dim", self.head_dim, 1)
        _require_at_least("index_head_dim", self.index_head_dim, 1)
        _require_at_least("window", self.window, 1)
        _require_at_least("block_size", self.block_size, 2)
        _require_at_least("max_draft_tokens", self.max_draft_tokens, 0)
        _require_kind("numerics", self.numerics, CacheNumerics)
        _require_kind("fp4_kv", self.fp4_kv, bool)
        _require_kind("layers", self.layers, tuple)
        _require_at_least("number of layers", len(self.layers), 1)
        producers = self.num_producer_layers
        if not _is_integer(producers) or not 0 <= producers <= len(self.layers):
            raise CacheConfigError(
                f"num_producer_layers is {shown(producers)}; allowed: 0 to {len(self.layers)} (all)"
            )
        for expected, layer in enumerate(self.layers):
            self._check_layer(expected, layer)
        for name, dim, fmt in (
            ("head_dim", self.head_dim, self.window_format),
            ("head_dim", self.head_dim, self.main_format),
            ("index_head_dim", self.index_head_dim, self.index_format),
        ):
            if dim % fmt.group:
                raise CacheConfigError(
                    f"{name} is {dim}; allowed: multiples of {fmt.group} (one {fmt.value} scale each)"
                )

    def _check_layer(self, expected: int, layer: LayerCacheSpec) -> None:
        name = f"layers[{expected}]"
        _require_kind(name, layer, LayerCacheSpec)
        _require_kind(f"{name}.owns_kv", layer.owns_kv, bool)
        _require_kind(f"{name}.owns_index", layer.owns_index, bool)
        if not _is_integer(layer.layer) or layer.layer != expected:
            raise CacheConfigError(
                f"{name}.layer is {shown(layer.layer)}; allowed: {expected} (ids count from 0)"
            )
        if not _is_integer(layer.ratio) or layer.ratio not in (0, 1, 2):
            raise CacheConfigError(f"{name}.ratio is {shown(layer.ratio)}; allowed: 0, 1, 2")
        if layer.ratio == 0 and (layer.owns_kv or layer.owns_index):
            raise CacheConfigError(
                f"layers[{expected}] owns compressed entries with ratio 0; allowed: ratio 1 or 2 for owners"
            )
        if layer.ratio and self.block_size % layer.ratio:
            raise CacheConfigError(
                f"block_size is {self.block_size}; allowed: multiples of every compress ratio "
                f"(layers[{expected}].ratio is {layer.ratio})"
            )

    @property
    def window_format(self) -> EntryFormat:
        """Format of sliding-window keys."""
        return EntryFormat.FP8 if self.numerics is CacheNumerics.RELEASE else EntryFormat.FLOAT32

    @property
    def main_format(self) -> EntryFormat:
        """Format of main compressed KV."""
        if self.numerics is CacheNumerics.FLOAT32:
            return EntryFormat.FLOAT32
        return EntryFormat.FP4 if self.fp4_kv else EntryFormat.FP8

    @property
    def index_format(self) -> EntryFormat:
        """Format of index keys."""
        return EntryFormat.MXFP4 if self.numerics is CacheNumerics.RELEASE else EntryFormat.FLOAT32


@dataclass(frozen=True, slots=True)
class Region:
    """``records`` records of ``record_bytes`` bytes, ``offset`` bytes from the start of a block or slot."""

    offset: int
    records: int
    record_bytes: int
    padded_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes in use, without the padding behind them."""
        return self.records * self.record_bytes


@dataclass(frozen=True, slots=True)
class LayerRegions:
    """Regions of one layer: two in its slot, two in a block. None where the layer owns no such region."""

    layer: int
    window: Region
    compress: Region | None
    index: Region | None
    entries: Region | None


@dataclass(frozen=True, slots=True)
class BlockItem:
    """Bytes of one owning layer in every block, padding included (cache spec, 5)."""

    layer: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class CacheMemory:
    """Pool sizes for a load, null block and null slot included."""

    blocks: int
    slots: int
    block_pool_bytes: int
    slot_pool_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes of both pools."""
        return self.block_pool_bytes + self.slot_pool_bytes


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Offsets and sizes of one block and one slot. Build it with :meth:`from_spec`.

    Attributes:
        spec: what the layout was computed from.
        window_cells: cells of a window ring, window + B, where B = max_draft_tokens + 1 is the largest
            rollback.
        compress_cells: cells of a ratio-2 compression ring, 2 + B - 1.
        block_bytes: stride of the block pool.
        slot_bytes: stride of the slot pool.
        stored_bytes: leading bytes of a slot that a persisted state keeps: the window rings of the producer
            layers.
        payload_bytes: bytes of a slot in use, without the padding at its end.
        layers: regions per layer, indexed by layer id.
    """

    spec: CacheSpec
    window_cells: int
    compress_cells: int
    block_bytes: int
    slot_bytes: int
    stored_bytes: int
    payload_bytes: int
    layers: tuple[LayerRegions, ...]

    @classmethod
    def from_spec(cls, spec: CacheSpec) -> CacheLayout:
        """Compute the layout (cache spec, 5 and 7)."""
        backtracking = spec.max_draft_tokens + 1
        window_cells = spec.window + backtracking
        compress_cells = 2 + backtracking - 1
        in_block, block_bytes = _plan_block(spec)
        windows, compress, payload_bytes = _plan_slot(spec, window_cells, compress_cells)
        window_record = spec.window_format.record_bytes(spec.head_dim)
        return cls(
            spec=spec,
            window_cells=window_cells,
            compress_cells=compress_cells,
            block_bytes=block_bytes,
            slot_bytes=_round_up(payload_bytes, math.lcm(REGION_ALIGNMENT, window_record)),
            stored_bytes=sum(window.padded_bytes for window in windows[: spec.num_producer_layers]),
            payload_bytes=payload_bytes,
            layers=tuple(
                LayerRegions(
                    layer.layer, windows[layer.layer], compress.get(layer.layer), *in_block[layer.layer]
                )
                for layer in spec.layers
            ),
        )

    def entries_per_block(self, ratio: int) -> int:
        """Entries of a layer of this compress ratio (1 or 2) in one block."""
        if ratio not in (1, 2):
            raise CacheLayoutError(f"compress ratio {ratio} has no entries; allowed: 1, 2")
        return self.spec.block_size // ratio

    def block_items(self) -> tuple[BlockItem, ...]:
        """The part of each owning layer in a block, in layer order."""
        items = []
        for regions in self.layers:
            owned = [region for region in (regions.index, regions.entries) if region is not None]
            if owned:
                size = sum(region.padded_bytes for region in owned)
                items.append(BlockItem(regions.layer, owned[0].offset, size))
        return tuple(items)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold the first ``tokens`` tokens of one sequence."""
        _require_at_least("tokens", tokens, 0)
        return -(-tokens // self.spec.block_size)

    def memory_for(self, tokens: int, sequences: int) -> CacheMemory:
        """Pools that hold ``sequences`` running sequences of ``tokens`` tokens each, sharing nothing.

        Raises:
            CacheConfigError: ``tokens`` is negative or ``sequences`` is below 1.
        """
        _require_at_least("sequences", sequences, 1)
        blocks = sequences * self.blocks_for(tokens) + 1
        slots = sequences + 1
        return CacheMemory(blocks, slots, blocks * self.block_bytes, slots * self.slot_bytes)


def _plan_block(spec: CacheSpec) -> tuple[list[tuple[Region | None, Region | None]], int]:
    """(index, entries) regions of every layer, back to back in layer order, and the block stride."""
    index_record = spec.index_format.record_bytes(spec.index_head_dim)
    main_record = spec.main_format.record_bytes(spec.head_dim)
    regions: list[tuple[Region | None, Region | None]] = []
    end = 0
    for layer in spec.layers:
        index = entries = None
        if layer.owns_index:
            index = _padded_region(end, spec.block_size // layer.ratio, index_record)
            end += index.padded_bytes
        if layer.owns_kv:
            entries = _padded_region(end, spec.block_size // layer.ratio, main_record)
            end += entries.padded_bytes
        regions.append((index, entries))
    return regions, _round_up(end, math.lcm(BLOCK_STRIDE_ALIGNMENT, main_record))


def _plan_slot(
    spec: CacheSpec, window_cells: int, compress_cells: int
) -> tuple[list[Region], dict[int, Region], int]:
    """Window rings by layer, compression rings of the ratio-2 owners, and the bytes they take together.

    All window rings come first in layer order, so those of the producer layers form the stored prefix by
    themselves.
    """
    window_record = spec.window_format.record_bytes(spec.head_dim)
    windows: list[Region] = []
    end = 0
    for _ in spec.layers:
        windows.append(_padded_region(end, window_cells, window_record))
        end += windows[-1].padded_bytes
    # A cell is [score, latent] in float32 whatever the numerics: a group must pool to the same bits on both
    # sides of a chunk border.
    cell_bytes = 2 * spec.head_dim * FLOAT32_BYTES
    compress: dict[int, Region] = {}
    for layer in spec.layers:
        if layer.owns_kv and layer.ratio == 2:
            ring_bytes = compress_cells * cell_bytes
            compress[layer.layer] = Region(end, compress_cells, cell_bytes, ring_bytes)
            end += ring_bytes
    return windows, compress, end


def _padded_region(offset: int, records: int, record_bytes: int) -> Region:
    return Region(offset, records, record_bytes, _round_up(records * record_bytes, REGION_ALIGNMENT))


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _require_at_least(name: str, value: int, minimum: int) -> None:
    if not _is_integer(value):
        raise CacheConfigError(f"{name} is {shown(value)}; allowed: an integer, {minimum} or more")
    if value < minimum:
        raise CacheConfigError(f"{name} is {value}; allowed: {minimum} or more")


def _require_kind(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise CacheConfigError(f"{name} is {shown(value)}; allowed: a value of type {kind.__name__}")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
