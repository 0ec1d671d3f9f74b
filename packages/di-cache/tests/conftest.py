"""Cache settings shared by the tests."""

import pytest
from di_cache import CacheLayout, CacheSpec, LayerCacheSpec
from hypothesis import HealthCheck, settings

# A busy machine is no defect.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

OWNERS = (2, 8, 14, 20)


@pytest.fixture(scope="session")
def released_spec() -> CacheSpec:
    """The released model: 40 backbone layers, 3 draft layers, owners 2, 8, 14 (ratio 2) and 20 (ratio 1)."""
    ratios = [0] * 2 + [2] * 18 + [1] * 20 + [0] * 3
    layers = tuple(
        LayerCacheSpec(layer, ratio, layer in OWNERS, layer in OWNERS) for layer, ratio in enumerate(ratios)
    )
    return CacheSpec(head_dim=512, index_head_dim=128, window=128, layers=layers, num_producer_layers=20)


@pytest.fixture(scope="session")
def released(released_spec: CacheSpec) -> CacheLayout:
    """Layout of the released model."""
    return CacheLayout.from_spec(released_spec)


@pytest.fixture
def small_spec() -> CacheSpec:
    """A window-only layer, a ratio-2 owner, a reader of it, a ratio-1 owner and a draft layer."""
    layers = (
        LayerCacheSpec(0, 0, owns_kv=False, owns_index=False),
        LayerCacheSpec(1, 2, owns_kv=True, owns_index=True),
        LayerCacheSpec(2, 2, owns_kv=False, owns_index=False),
        LayerCacheSpec(3, 1, owns_kv=True, owns_index=True),
        LayerCacheSpec(4, 0, owns_kv=False, owns_index=False),
    )
    return CacheSpec(
        head_dim=32, index_head_dim=32, window=16, layers=layers, num_producer_layers=3, block_size=6
    )
