"""The two device pools and the typed views into them.

The pools are raw bytes; a view is a strided window over them, so what a kernel writes through one view
another sees through the pool, and nothing is copied. Views are made once, when the pool is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

import torch
from di_kernels.errors import shown
from di_kernels.memory import allocate
from di_kernels.ops.checks import check_dtype, check_kind
from torch import Tensor

from di_cache.layout import (
    CacheConfigError,
    CacheLayout,
    CacheLayoutError,
    CacheNumerics,
    LayerRegions,
    Region,
)

POISON_BYTE = 0xFF
"""Filled with it, every format reads as NaN: float32 and e4m3 values, UE8M0 and e4m3 scales."""
MOST_UNITS = 2**31 - 1
"""Blocks or slots of a pool, as many as int32 numbers reach."""


@dataclass(frozen=True, slots=True, eq=False)
class _LayerViews:
    window: Tensor
    compress: Tensor | None
    entries: Tensor | None
    index_values: Tensor | None
    index_scales: Tensor | None


class CachePool:
    """Memory of ``num_blocks`` blocks and ``num_slots`` state slots, and views of it by layer.

    Block 0 and slot 0 are the null ones that padding may write to; they are never handed out, so both counts
    must be at least 2. Memory is not initialised: a reader is bounded by positions and never reads a cell
    before it is written. With ``poison`` everything starts as NaN in every format, so that a test sees a read
    that breaks this rule.

    In the shapes below N is ``num_blocks``, S is ``num_slots``, D and Di are the head sizes of main and index
    keys, and E is the number of entries of the layer in a block, block_size / ratio.

    Attributes:
        layout: offsets and sizes.
        blocks: uint8 [N, block_bytes].
        slots: uint8 [S, slot_bytes].

    Raises:
        TypeError: ``layout`` is no CacheLayout.
        CacheConfigError: ``num_blocks`` or ``num_slots`` is no integer from 2 to 2**31 - 1, or ``device`` no device.
        MemoryError: the host has not so much memory.
    """

    def __init__(
        self,
        layout: CacheLayout,
        num_blocks: int,
        num_slots: int,
        *,
        device: torch.device | str = "cpu",
        poison: bool = False,
    ) -> None:
        check_kind("layout", layout, CacheLayout)
        device = _device(device)
        for name, value in (("num_blocks", num_blocks), ("num_slots", num_slots)):
            if not isinstance(value, int) or not 2 <= value <= MOST_UNITS:
                raise CacheConfigError(
                    f"{name} is {shown(value)}; allowed: an integer from 2 (number 0 is the null one) to {MOST_UNITS}"
                )
        self.layout = layout
        self.blocks = _uninitialised(num_blocks, layout.block_bytes, device)
        self.slots = _uninitialised(num_slots, layout.slot_bytes, device)
        if poison:
            self.blocks.fill_(POISON_BYTE)
            self.slots.fill_(POISON_BYTE)
        self._views = tuple(self._make_views(regions) for regions in layout.layers)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a CachePool cannot be copied or pickled: its views share its memory")

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool, the null block included."""
        return self.blocks.shape[0]

    @property
    def num_slots(self) -> int:
        """Slots of the pool, the null slot included."""
        return self.slots.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of both pools."""
        return self.blocks.nbytes + self.slots.nbytes

    def window_ring(self, layer: int) -> Tensor:
        """Sliding-window keys of a layer: uint8 [S, window_cells, D + D/32] (float32 [S, window_cells, D]).

        Raises:
            CacheLayoutError: no such layer.
        """
        return self._layer(layer).window

    def compress_ring(self, layer: int) -> Tensor:
        """Latest tokens of a ratio-2 owner: float32 [S, compress_cells, 2, D], component 0 score, 1 latent.

        Raises:
            CacheLayoutError: the layer is not an owner of main KV with ratio 2.
        """
        return self._owned(layer, self._layer(layer).compress, "compression ring (owners with ratio 2 do)")

    def entries(self, layer: int) -> Tensor:
        """Main compressed KV of an owner: uint8 [N, E, record] (float32 [N, E, D]).

        Raises:
            CacheLayoutError: the layer reads another layer's entries, or none.
        """
        return self._owned(layer, self._layer(layer).entries, "main KV (layers with owns_kv do)")

    def index_values(self, layer: int) -> Tensor:
        """Index key codes of an owner: uint8 [N, E, Di/2] (float32 [N, E, Di], the keys themselves).

        Raises:
            CacheLayoutError: the layer reads another layer's index keys, or none.
        """
        return self._owned(layer, self._layer(layer).index_values, "index keys (layers with owns_index do)")

    def index_scales(self, layer: int) -> Tensor | None:
        """Index key scales of an owner: uint8 [N, E, Di/32]; None under float32 numerics, which has none.

        Raises:
            CacheLayoutError: the layer reads another layer's index keys, or none.
        """
        self.index_values(layer)
        return self._layer(layer).index_scales

    def copy_blocks(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy blocks (from, to), one pair after another: what one wrote, a later one may read.

        Raises:
            TypeError, IndexError: ``pairs`` holds something else than pairs of blocks; nothing is copied then.
        """
        _copy_units(self.blocks, pairs, "block")

    def copy_slots(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy slots (from, to), one pair after another.

        Raises:
            TypeError, IndexError: ``pairs`` holds something else than pairs of slots; nothing is copied then.
        """
        _copy_units(self.slots, pairs, "slot")

    def poison_blocks(self, blocks: Tensor) -> None:
        """Overwrite blocks (int64 [n]) with NaN, so that a test sees reads of freed blocks.

        Raises:
            TypeError, IndexError: ``blocks`` is something else, or holds a number that is no block of the pool.
        """
        _poison_units(self.blocks, blocks, "blocks")

    def poison_slots(self, slots: Tensor) -> None:
        """Overwrite slots (int64 [n]) with NaN, so that a test sees reads of freed slots.

        Raises:
            TypeError, IndexError: ``slots`` is something else, or holds a number that is no slot of the pool.
        """
        _poison_units(self.slots, slots, "slots")

    def _layer(self, layer: int) -> _LayerViews:
        if not isinstance(layer, int) or not 0 <= layer < len(self._views):
            raise CacheLayoutError(f"layer is {shown(layer)}; allowed: 0 to {len(self._views) - 1}")
        return self._views[layer]

    @staticmethod
    def _owned(layer: int, view: Tensor | None, region: str) -> Tensor:
        if view is None:
            raise CacheLayoutError(f"layer {layer} owns no {region}")
        return view

    def _make_views(self, regions: LayerRegions) -> _LayerViews:
        spec = self.layout.spec
        plain = spec.numerics is CacheNumerics.FLOAT32
        index_values, index_scales = self._make_index_views(regions.index)
        compress = None
        if regions.compress is not None:
            flat = _record_view(self.slots, regions.compress).view(torch.float32)
            compress = flat.view(*flat.shape[:2], 2, spec.head_dim)
        window = _record_view(self.slots, regions.window)
        entries = None if regions.entries is None else _record_view(self.blocks, regions.entries)
        if plain:
            window = window.view(torch.float32)
            entries = None if entries is None else entries.view(torch.float32)
        return _LayerViews(window, compress, entries, index_values, index_scales)

    def _make_index_views(self, region: Region | None) -> tuple[Tensor | None, Tensor | None]:
        """Values of all entries of a block come first, then all scales (block-split; cache spec, 3)."""
        if region is None:
            return None, None
        spec = self.layout.spec
        value_bytes = spec.index_format.value_bytes(spec.index_head_dim)
        scale_bytes = spec.index_format.scale_bytes(spec.index_head_dim)
        values = _strided(self.blocks, region.offset, region.records, value_bytes)
        if not scale_bytes:
            return values.view(torch.float32), None
        scales_at = region.offset + region.records * value_bytes
        return values, _strided(self.blocks, scales_at, region.records, scale_bytes)


def _device(device: torch.device | str) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise CacheConfigError(f"device is {shown(device)}; allowed: a device of torch, as cpu") from None


def _copy_units(pool: Tensor, pairs: Iterable[tuple[int, int]], unit: str) -> None:
    """Copy rows of the pool; a negative number would silently mean one from its end."""
    checked = []
    for place, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"pairs[{place}] is {shown(pair)}; it must be two {unit}s, from and to")
        for number in pair:
            check_kind(f"{unit} of pairs[{place}]", number, int)
            if not 0 <= number < len(pool):
                raise IndexError(f"{unit} of pairs[{place}] is {number}; allowed: 0 to {len(pool) - 1}")
        checked.append(pair)
    for source, target in checked:
        pool[target].copy_(pool[source])


def _poison_units(pool: Tensor, units: Tensor, name: str) -> None:
    check_dtype(name, units, torch.int64)
    if units.numel() and not 0 <= int(units.min()) <= int(units.max()) < len(pool):
        spans = f"{int(units.min())}..{int(units.max())}"
        raise IndexError(f"{name} spans {spans}; allowed: 0 to {len(pool) - 1}")
    pool[units] = POISON_BYTE


def _uninitialised(count: int, nbytes: int, device: torch.device) -> Tensor:
    """uint8 [count, nbytes]; on the CPU in pages of 2 MB: a step reads records from all over the pool, and to translate
    their addresses would take as long as to read them."""
    if device.type != "cpu":
        return torch.empty((count, nbytes), dtype=torch.uint8, device=device)
    return allocate(count * nbytes).view(count, nbytes)


def _record_view(pool: Tensor, region: Region) -> Tensor:
    return _strided(pool, region.offset, region.records, region.record_bytes)


def _strided(pool: Tensor, offset: int, records: int, record_bytes: int) -> Tensor:
    """uint8 [units, records, record_bytes] over the bytes of every block or slot from ``offset`` on."""
    return pool[:, offset : offset + records * record_bytes].view(len(pool), records, record_bytes)
