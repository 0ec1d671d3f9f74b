"""Which caches the layers of a model keep, in the terms of ``di_cache``."""

from __future__ import annotations

from di_cache import CacheNumerics, CacheSpec, LayerCacheSpec

from di_model.config import ModelConfig
from di_model.numerics import Numerics


def cache_spec(
    config: ModelConfig,
    numerics: Numerics,
    *,
    block_size: int = 128,
    draft: bool = True,
    max_draft_tokens: int = 5,
) -> CacheSpec:
    """Cache geometry of a model (cache specification, 2, 5 and 7).

    Args:
        config: the model.
        numerics: release formats, or float32 entries.
        block_size: tokens per block, a multiple of every compress ratio.
        draft: whether the draft layers keep rings too.
        max_draft_tokens: longest speculation the rings leave room for.
    """
    text = config.text
    roles = (*text.layers, *(text.draft_layers if draft else ()))
    return CacheSpec(
        head_dim=text.head_dim,
        index_head_dim=text.index_head_dim,
        window=text.sliding_window,
        layers=tuple(
            LayerCacheSpec(
                role.index, role.ratio, owns_kv=role.is_kv_source, owns_index=role.is_index_k_source
            )
            for role in roles
        ),
        num_producer_layers=text.consumer_start,
        block_size=block_size,
        max_draft_tokens=max_draft_tokens,
        numerics=CacheNumerics.FLOAT32 if numerics is Numerics.FLOAT32 else CacheNumerics.RELEASE,
        fp4_kv=text.use_fp4_sparse_kv,
    )
