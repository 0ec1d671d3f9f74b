"""Views of the pools: addresses of the released layout, no copies, no overlap, NaN poison."""

import copy
import dataclasses
import pickle
from collections.abc import Iterator

import pytest
import torch
from di_cache import CacheConfigError, CacheLayout, CacheLayoutError, CacheNumerics, CachePool, CacheSpec
from di_kernels.testing import torch_default
from torch import Tensor


def address(view: Tensor, *index: int, pool: Tensor) -> int:
    """Bytes from the start of a pool to an element of a view of it."""
    return view[index].data_ptr() - pool.data_ptr()


def all_views(pool: CachePool) -> Iterator[Tensor]:
    for regions in pool.layout.layers:
        yield pool.window_ring(regions.layer)
        if regions.compress:
            yield pool.compress_ring(regions.layer)
        if regions.entries:
            yield pool.entries(regions.layer)
        if regions.index:
            yield pool.index_values(regions.layer)
            scales = pool.index_scales(regions.layer)
            if scales is not None:
                yield scales


def test_block_addresses(released: CacheLayout) -> None:
    """Cache spec, section 5: position 301 with block table [7, 12, 5]."""
    pool = CachePool(released, num_blocks=13, num_slots=2)
    scales_20, scales_2 = pool.index_scales(20), pool.index_scales(2)
    assert scales_20 is not None
    assert scales_2 is not None
    blocks = pool.blocks
    assert address(pool.index_values(20), 5, 45, pool=blocks) == 641_472
    assert address(scales_20, 5, 45, pool=blocks) == 646_964
    assert address(pool.entries(20), 5, 45, pool=blocks) == 660_256
    assert address(pool.entries(20), 5, 45, 256, pool=blocks) == 660_512
    assert address(pool.index_values(2), 5, 22, pool=blocks) == 571_648
    assert address(scales_2, 5, 22, pool=blocks) == 574_424
    assert address(pool.entries(2), 5, 22, pool=blocks) == 580_928
    assert address(pool.entries(2), 5, 22, 256, pool=blocks) == 581_184


def test_slot_addresses(released: CacheLayout) -> None:
    """Cache spec, section 7.2: cell of position p in a window ring and in a compression ring."""
    pool = CachePool(released, num_blocks=2, num_slots=4)
    base, p = 3 * 3_128_928, 1000
    ring = pool.window_ring(25)
    assert address(ring, 3, p % 134, pool=pool.slots) == base + 1_415_040 + 5 * 70_752 + (p % 134) * 528
    ring = pool.compress_ring(8)
    assert address(ring, 3, p % 7, 0, pool=pool.slots) == base + 3_071_008 + (p % 7) * 4096
    assert address(ring, 3, p % 7, 1, pool=pool.slots) == base + 3_071_008 + (p % 7) * 4096 + 2048


def test_released_shapes(released: CacheLayout) -> None:
    pool = CachePool(released, num_blocks=3, num_slots=2)
    scales = pool.index_scales(14)
    assert scales is not None
    assert pool.window_ring(42).shape == (2, 134, 528)
    assert pool.compress_ring(14).shape == (2, 7, 2, 512)
    assert pool.entries(14).shape == (3, 64, 288)
    assert pool.index_values(14).shape == (3, 64, 64)
    assert scales.shape == (3, 64, 4)
    assert pool.compress_ring(14).dtype == torch.float32
    assert (pool.num_blocks, pool.num_slots) == (3, 2)
    assert pool.nbytes == 3 * 114_048 + 2 * 3_128_928


def test_a_pool_of_the_host_lies_at_large_pages(small_spec: CacheSpec) -> None:
    pool = CachePool(CacheLayout.from_spec(small_spec), num_blocks=3, num_slots=2)
    assert pool.blocks.data_ptr() % (2 << 20) == pool.slots.data_ptr() % (2 << 20) == 0
    assert pool.blocks.device.type == "cpu"


def test_float32_shapes(small_spec: CacheSpec) -> None:
    layout = CacheLayout.from_spec(dataclasses.replace(small_spec, numerics=CacheNumerics.FLOAT32))
    pool = CachePool(layout, num_blocks=3, num_slots=2)
    assert pool.window_ring(0).shape == (2, 22, 32)
    assert pool.entries(1).shape == (3, 3, 32)
    assert pool.index_values(3).shape == (3, 6, 32)
    assert pool.index_scales(3) is None
    assert {view.dtype for view in all_views(pool)} == {torch.float32}


@pytest.mark.parametrize("numerics", CacheNumerics)
@pytest.mark.parametrize("block_size", [2, 6, 128])
def test_views_are_disjoint_windows_of_the_pools(
    small_spec: CacheSpec, numerics: CacheNumerics, block_size: int
) -> None:
    """Every byte of every region belongs to one element of one view."""
    spec = dataclasses.replace(small_spec, numerics=numerics, block_size=block_size)
    layout = CacheLayout.from_spec(spec)
    pool = CachePool(layout, num_blocks=3, num_slots=2)
    pool.blocks.zero_()
    pool.slots.zero_()
    in_use = 0
    for view in all_views(pool):
        as_bytes = view.view(torch.uint8)
        assert not as_bytes.any(), "written through another view"
        as_bytes.fill_(1)
        in_use += as_bytes.numel()
    per_block = per_slot = 0
    for regions in layout.layers:
        per_block += sum(r.nbytes for r in (regions.index, regions.entries) if r)
        per_slot += sum(r.nbytes for r in (regions.window, regions.compress) if r)
    assert in_use == 3 * per_block + 2 * per_slot
    assert int(pool.blocks.sum(dtype=torch.int64)) + int(pool.slots.sum(dtype=torch.int64)) == in_use


def reads_nan(codes: Tensor, dtype: torch.dtype) -> bool:
    """Whether every byte is NaN in an 8-bit format."""
    return bool(codes.contiguous().view(dtype).float().isnan().all())


def test_poison_is_nan_in_every_format(small_spec: CacheSpec) -> None:
    pool = CachePool(CacheLayout.from_spec(small_spec), num_blocks=3, num_slots=2, poison=True)
    scales = pool.index_scales(1)
    assert scales is not None
    assert pool.compress_ring(1).isnan().all()
    assert reads_nan(pool.window_ring(0)[..., :32], torch.float8_e4m3fn)
    assert reads_nan(pool.window_ring(0)[..., 32:], torch.float8_e8m0fnu)
    assert reads_nan(pool.entries(3)[..., 16:], torch.float8_e4m3fn)
    assert reads_nan(scales, torch.float8_e8m0fnu)


def test_poison_of_freed_units_spares_the_others(small_spec: CacheSpec) -> None:
    pool = CachePool(CacheLayout.from_spec(small_spec), num_blocks=4, num_slots=3)
    pool.blocks.zero_()
    pool.slots.zero_()
    pool.poison_blocks(torch.tensor([1, 3]))
    pool.poison_slots(torch.tensor([2]))
    assert [bool(block.all()) for block in pool.blocks] == [False, True, False, True]
    assert [bool(slot.any()) for slot in pool.slots] == [False, False, True]


def test_layers_without_a_region_are_named(released: CacheLayout) -> None:
    pool = CachePool(released, num_blocks=2, num_slots=2)
    for read, layer, message in (
        (pool.entries, 3, "layer 3 owns no main KV"),
        (pool.index_values, 24, "layer 24 owns no index keys"),
        (pool.index_scales, 0, "layer 0 owns no index keys"),
        (pool.compress_ring, 20, "layer 20 owns no compression ring"),
        (pool.window_ring, 43, "layer is 43; allowed: 0 to 42"),
        (pool.window_ring, -1, "layer is -1; allowed: 0 to 42"),
        (pool.window_ring, "a", "layer is 'a'; allowed: 0 to 42"),
        (pool.entries, None, "layer is None; allowed: 0 to 42"),
        (pool.index_scales, 0.0, "layer is 0.0; allowed: 0 to 42"),
    ):
        with pytest.raises(CacheLayoutError, match=message):
            read(layer)  # type: ignore[operator]


@pytest.mark.parametrize("blocks, slots, field", [(1, 2, "num_blocks"), (2, 1, "num_slots")])
def test_pools_need_more_than_the_null_unit(
    small_spec: CacheSpec, blocks: int, slots: int, field: str
) -> None:
    with pytest.raises(CacheConfigError, match=f"{field} is 1; allowed: an integer from 2"):
        CachePool(CacheLayout.from_spec(small_spec), blocks, slots)


@pytest.mark.parametrize("count", [2.5, "3", None, 2**31])
def test_units_are_counted_by_integers(small_spec: CacheSpec, count: object) -> None:
    with pytest.raises(CacheConfigError, match=r"num_slots is .*; allowed: an integer from 2"):
        CachePool(CacheLayout.from_spec(small_spec), 2, count)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["x", "", None, 1.5, "cpu:a"])
def test_what_is_no_device_is_refused(small_spec: CacheSpec, device: str) -> None:
    with pytest.raises(CacheConfigError, match=r"^device is .*; allowed: a device of torch"):
        CachePool(CacheLayout.from_spec(small_spec), 2, 2, device=device)


def test_what_is_no_layout_is_refused(small_spec: CacheSpec) -> None:
    for wrong in (None, small_spec, "x"):
        with pytest.raises(TypeError, match=r"^layout is .*; it must be of type CacheLayout$"):
            CachePool(wrong, 2, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("default", [torch.float64, torch.device("meta")], ids=str)
def test_a_pool_does_not_depend_on_the_defaults_of_torch(small_spec: CacheSpec, default) -> None:
    spec = dataclasses.replace(small_spec, numerics=CacheNumerics.FLOAT32)
    with torch_default(default):
        pool = CachePool(CacheLayout.from_spec(spec), 3, 2, poison=True)
        pool.copy_blocks([(1, 2)])
        views = list(all_views(pool))
    for view in (pool.blocks, pool.slots, *views):
        assert view.device.type == "cpu"
    assert {view.dtype for view in views} == {torch.float32}
    assert bool(pool.blocks.all())


def test_a_pool_is_not_copied(small_spec: CacheSpec) -> None:
    """A copy of its views would not share the memory of the copied pools."""
    pool = CachePool(CacheLayout.from_spec(small_spec), 2, 2)
    for copy_of in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="a CachePool cannot be copied or pickled"):
            copy_of(pool)


def test_copies_follow_each_other(released: CacheLayout) -> None:
    pool = CachePool(released, num_blocks=5, num_slots=5)
    for rows, copied in ((pool.blocks, pool.copy_blocks), (pool.slots, pool.copy_slots)):
        for row in range(5):
            rows[row] = row
        copied([(1, 2), (2, 4)])
        assert [row.unique().tolist() for row in rows] == [[0], [1], [1], [3], [1]]


@pytest.mark.parametrize("pair", [(-1, 0), (0, -1), (9, 0), (0, 5), (2**70, 0)])
def test_a_copy_stays_within_the_pool(small_spec: CacheSpec, pair: tuple[int, int]) -> None:
    """Nothing is copied, neither what stands before it."""
    pool = CachePool(CacheLayout.from_spec(small_spec), num_blocks=5, num_slots=5)
    for rows, copied, unit in (
        (pool.blocks, pool.copy_blocks, "block"),
        (pool.slots, pool.copy_slots, "slot"),
    ):
        for row in range(5):
            rows[row] = row
        with pytest.raises(IndexError, match=rf"^{unit} of pairs\[1\] is -?\d+; allowed: 0 to 4$"):
            copied([(1, 2), pair])
        assert [row.unique().tolist() for row in rows] == [[0], [1], [2], [3], [4]]


def test_what_is_no_pair_is_refused(small_spec: CacheSpec) -> None:
    pool = CachePool(CacheLayout.from_spec(small_spec), num_blocks=5, num_slots=5)
    for wrong in (3, (1,), (1, 2, 3), "ab", None):
        with pytest.raises(TypeError, match=r"^pairs\[0\] is .*; it must be two blocks, from and to$"):
            pool.copy_blocks([wrong])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"^slot of pairs\[0\] is 1.5; it must be of type int$"):
        pool.copy_slots([(0, 1.5)])  # type: ignore[list-item]


def test_only_units_of_the_pool_are_poisoned(small_spec: CacheSpec) -> None:
    pool = CachePool(CacheLayout.from_spec(small_spec), num_blocks=4, num_slots=3)
    pool.blocks.zero_()
    pool.slots.zero_()
    for numbers in ([1, -1], [4]):
        with pytest.raises(IndexError, match=r"^blocks spans -?\d\.\.\d; allowed: 0 to 3$"):
            pool.poison_blocks(torch.tensor(numbers))
    with pytest.raises(TypeError, match=r"^slots is \[1\]; it must be of type Tensor$"):
        pool.poison_slots([1])  # type: ignore[arg-type]
    assert not pool.blocks.any()
    pool.poison_blocks(torch.empty(0, dtype=torch.int64))
    assert not pool.blocks.any()
