"""Sizes and offsets of blocks and slots: the released figures, the same rules elsewhere, and bad settings."""

import dataclasses
import math

import pytest
from di_cache import (
    BlockItem,
    CacheConfigError,
    CacheLayout,
    CacheLayoutError,
    CacheNumerics,
    CacheSpec,
    EntryFormat,
    LayerCacheSpec,
)
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    "fmt, dim, values, scales",
    [
        (EntryFormat.FP8, 512, 512, 16),
        (EntryFormat.FP4, 512, 256, 32),
        (EntryFormat.MXFP4, 128, 64, 4),
        (EntryFormat.FLOAT32, 512, 2048, 0),
    ],
)
def test_record_sizes(fmt: EntryFormat, dim: int, values: int, scales: int) -> None:
    assert fmt.value_bytes(dim) == values
    assert fmt.scale_bytes(dim) == scales
    assert fmt.record_bytes(dim) == values + scales


class TestReleased:
    """Cache spec, sections 5 and 7.2."""

    def test_totals(self, released: CacheLayout) -> None:
        assert released.block_bytes == 114_048
        assert released.slot_bytes == 3_128_928
        assert released.stored_bytes == 1_415_040
        assert released.payload_bytes == 3_128_352
        assert (released.window_cells, released.compress_cells) == (134, 7)

    def test_block(self, released: CacheLayout) -> None:
        assert released.block_items() == (
            BlockItem(2, 0, 22_784),
            BlockItem(8, 22_784, 22_784),
            BlockItem(14, 45_568, 22_784),
            BlockItem(20, 68_352, 45_568),
        )
        found = {}
        for regions in released.layers:
            if regions.index is not None and regions.entries is not None:
                found[regions.layer] = (regions.index.nbytes, regions.entries.offset, regions.entries.nbytes)
        assert found == {
            2: (4_352, 4_352, 18_432),
            8: (4_352, 27_136, 18_432),
            14: (4_352, 49_920, 18_432),
            20: (8_704, 77_056, 36_864),
        }
        assert released.entries_per_block(1) == 128
        assert released.entries_per_block(2) == 64

    def test_slot(self, released: CacheLayout) -> None:
        assert [regions.window.offset for regions in released.layers] == [70_752 * n for n in range(43)]
        assert {regions.window.nbytes for regions in released.layers} == {134 * 528}
        rings = {regions.layer: regions.compress for regions in released.layers if regions.compress}
        assert {layer: ring.offset for layer, ring in rings.items()} == {
            2: 3_042_336,
            8: 3_071_008,
            14: 3_099_680,
        }
        assert {ring.nbytes for ring in rings.values()} == {28_672}

    def test_fp8_main_kv(self, released_spec: CacheSpec) -> None:
        layout = CacheLayout.from_spec(dataclasses.replace(released_spec, fp4_kv=False))
        entries = layout.layers[20].entries
        assert entries is not None
        assert entries.record_bytes == 528
        assert layout.block_bytes % math.lcm(128, 528) == 0
        assert layout.slot_bytes == 3_128_928

    def test_float32_records(self, released_spec: CacheSpec) -> None:
        spec = dataclasses.replace(released_spec, numerics=CacheNumerics.FLOAT32)
        regions = CacheLayout.from_spec(spec).layers[2]
        assert regions.index is not None
        assert regions.entries is not None
        assert regions.compress is not None
        assert regions.window.record_bytes == regions.entries.record_bytes == 2048
        assert regions.index.record_bytes == 512
        assert regions.compress.nbytes == 28_672

    def test_memory_for(self, released: CacheLayout) -> None:
        memory = released.memory_for(tokens=1000, sequences=3)
        assert (memory.blocks, memory.slots) == (3 * 8 + 1, 4)
        assert memory.block_pool_bytes == 25 * 114_048
        assert memory.slot_pool_bytes == 4 * 3_128_928
        assert memory.total_bytes == memory.block_pool_bytes + memory.slot_pool_bytes
        assert [released.blocks_for(tokens) for tokens in (0, 1, 128, 129)] == [0, 1, 1, 2]


def test_without_consumers_every_window_ring_is_stored(small_spec: CacheSpec) -> None:
    layout = CacheLayout.from_spec(dataclasses.replace(small_spec, num_producer_layers=5))
    last = layout.layers[4].window
    assert layout.stored_bytes == last.offset + last.padded_bytes


def test_without_speculation_rings_keep_one_row_of_slack(small_spec: CacheSpec) -> None:
    layout = CacheLayout.from_spec(dataclasses.replace(small_spec, max_draft_tokens=0))
    assert (layout.window_cells, layout.compress_cells) == (17, 2)


def test_entries_per_block_needs_a_ratio(released: CacheLayout) -> None:
    with pytest.raises(CacheLayoutError, match=r"ratio 0 .* allowed: 1, 2"):
        released.entries_per_block(0)


@st.composite
def specs(draw: st.DrawFn) -> CacheSpec:
    ratios = draw(st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=6))
    layers = tuple(
        LayerCacheSpec(n, ratio, ratio > 0 and draw(st.booleans()), ratio > 0 and draw(st.booleans()))
        for n, ratio in enumerate(ratios)
    )
    return CacheSpec(
        head_dim=32 * draw(st.integers(1, 4)),
        index_head_dim=32 * draw(st.integers(1, 4)),
        window=draw(st.integers(1, 40)),
        layers=layers,
        num_producer_layers=draw(st.integers(0, len(layers))),
        block_size=2 * draw(st.integers(1, 20)),
        max_draft_tokens=draw(st.integers(0, 7)),
        numerics=draw(st.sampled_from(CacheNumerics)),
        fp4_kv=draw(st.booleans()),
    )


@given(specs())
def test_regions_tile_their_unit(spec: CacheSpec) -> None:
    """Regions of a block, and of a slot, follow each other without gap or overlap, and fit."""
    layout = CacheLayout.from_spec(spec)
    in_block = [r for regions in layout.layers for r in (regions.index, regions.entries) if r]
    in_slot = [regions.window for regions in layout.layers]
    assert layout.stored_bytes == sum(r.padded_bytes for r in in_slot[: spec.num_producer_layers])
    in_slot += [regions.compress for regions in layout.layers if regions.compress]
    for unit, size in ((in_block, layout.block_bytes), (in_slot, layout.slot_bytes)):
        end = 0
        for region in unit:
            assert region.offset == end
            assert region.offset % 4 == 0
            assert region.nbytes <= region.padded_bytes
            end += region.padded_bytes
        assert end <= size
    assert layout.block_bytes % math.lcm(128, spec.main_format.record_bytes(spec.head_dim)) == 0
    assert layout.slot_bytes % math.lcm(32, spec.window_format.record_bytes(spec.head_dim)) == 0
    assert sum(item.nbytes for item in layout.block_items()) == sum(r.padded_bytes for r in in_block)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"head_dim": 0}, "head_dim is 0; allowed: 1 or more"),
        ({"head_dim": 48}, "head_dim is 48; allowed: multiples of 32"),
        ({"index_head_dim": 16}, "index_head_dim is 16; allowed: multiples of 32"),
        ({"window": 0}, "window is 0; allowed: 1 or more"),
        ({"block_size": 1}, "block_size is 1; allowed: 2 or more"),
        ({"block_size": 5}, "block_size is 5; allowed: multiples of every compress ratio"),
        ({"max_draft_tokens": -1}, "max_draft_tokens is -1; allowed: 0 or more"),
        ({"num_producer_layers": 6}, "num_producer_layers is 6; allowed: 0 to 5"),
        ({"num_producer_layers": -1}, "num_producer_layers is -1; allowed: 0 to 5"),
        ({"head_dim": None}, "head_dim is None; allowed: an integer, 1 or more"),
        ({"index_head_dim": "a"}, "index_head_dim is 'a'; allowed: an integer, 1 or more"),
        ({"window": 1.5}, "window is 1.5; allowed: an integer, 1 or more"),
        ({"block_size": True}, "block_size is True; allowed: an integer, 2 or more"),
        ({"max_draft_tokens": 1.5}, "max_draft_tokens is 1.5; allowed: an integer, 0 or more"),
        ({"num_producer_layers": "a"}, "num_producer_layers is 'a'; allowed: 0 to 5"),
        ({"num_producer_layers": 1.5}, "num_producer_layers is 1.5; allowed: 0 to 5"),
        ({"numerics": "release"}, "numerics is 'release'; allowed: a value of type CacheNumerics"),
        ({"fp4_kv": 1}, "fp4_kv is 1; allowed: a value of type bool"),
        ({"layers": (1,)}, r"layers\[0\] is 1; allowed: a value of type LayerCacheSpec"),
        ({"layers": 5}, "layers is 5; allowed: a value of type tuple"),
        ({"layers": (LayerCacheSpec("a", 0, False, False),)}, r"layers\[0\].layer is 'a'; allowed: 0"),  # type: ignore[arg-type]
        ({"layers": (LayerCacheSpec(0, 1.0, True, True),)}, r"layers\[0\].ratio is 1.0; allowed: 0, 1"),  # type: ignore[arg-type]
        ({"layers": (LayerCacheSpec(0, 1, "no", True),)}, r"layers\[0\].owns_kv is 'no'; allowed: a"),  # type: ignore[arg-type]
        ({"layers": (LayerCacheSpec(0, 1, True, None),)}, r"layers\[0\].owns_index is None; allowed: a"),  # type: ignore[arg-type]
        ({"layers": ()}, "number of layers is 0; allowed: 1 or more"),
        ({"layers": (LayerCacheSpec(1, 0, False, False),)}, r"layers\[0\].layer is 1; allowed: 0"),
        ({"layers": (LayerCacheSpec(0, 4, True, True),)}, r"layers\[0\].ratio is 4; allowed: 0, 1, 2"),
        ({"layers": (LayerCacheSpec(0, 0, True, False),)}, r"layers\[0\] owns .* ratio 0; allowed: ratio 1"),
        ({"layers": (LayerCacheSpec(0, 0, False, True),)}, r"layers\[0\] owns .* ratio 0; allowed: ratio 1"),
    ],
)
def test_bad_settings_are_named(small_spec: CacheSpec, change: dict[str, object], message: str) -> None:
    if "layers" in change:
        change = change | {"num_producer_layers": 0}
    with pytest.raises(CacheConfigError, match=message):
        dataclasses.replace(small_spec, **change)  # type: ignore[arg-type]


def test_float32_takes_any_head_size(small_spec: CacheSpec) -> None:
    spec = dataclasses.replace(small_spec, head_dim=5, index_head_dim=3, numerics=CacheNumerics.FLOAT32)
    entries = CacheLayout.from_spec(spec).layers[3].entries
    assert entries is not None
    assert entries.record_bytes == 20


@pytest.mark.parametrize("tokens, sequences", [(-1, 1), (1, 0), (1.5, 1), (1, "a")])
def test_memory_for_refuses_what_is_no_load(released: CacheLayout, tokens: int, sequences: int) -> None:
    with pytest.raises(CacheConfigError, match="allowed"):
        released.memory_for(tokens, sequences)
