"""The cached model as one native object: a step is one call, with the bits of :meth:`di_model.model.Model.forward`.

Here a model's weights and roles become the parts of a :class:`di_kernels.plan.ModelPlan`, in the same order and under
the same names as the modules that compute them one by one (:mod:`di_model.decoder`, :mod:`di_model.attention`, ...).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from di_cache import CachePool, SlotMapError
from di_kernels.ops.linear import LinearWeight
from di_kernels.ops.sampling import SamplingParametersError
from di_kernels.plan import (
    AttentionPart,
    CachedPlan,
    Caches,
    CandidateUse,
    CompressorPart,
    DraftContextPart,
    EngramPart,
    ExpertsPart,
    HyperPart,
    IndexerPart,
    IndexKeysPart,
    IntArray,
    LayerCaches,
    LayerPart,
    ModelPart,
    ModelPlan,
    Projection,
    WindowPart,
)
from numpy.typing import NDArray
from torch import Tensor

from di_model.attention import Attention
from di_model.decoder import DecoderLayer
from di_model.engram import Engram
from di_model.indexer import Indexer
from di_model.model import Model, StepOutput
from di_model.moe import MixtureOfExperts
from di_model.numerics import Numerics
from di_model.parts import RecentEntries
from di_model.projection import quantizes_input
from di_model.weights import HyperWeights


class NativeModel:
    """A model and the pools of one cache, bound to native objects. CPU only; one step at a time.

    Args:
        model: with all of its weights on the CPU.
        cache: pools that every step reads and writes.

    Raises:
        ValueError, TypeError: weights or caches of a shape or type that the kernels do not take.
    """

    def __init__(self, model: Model, cache: CachePool) -> None:
        self._plan = ModelPlan(model_part(model))
        self._cached = CachedPlan(self._plan, caches_of(model, cache))

    def forward(
        self,
        tokens: IntArray,
        q_start: IntArray,
        q_len: IntArray,
        slots: IntArray,
        block_table: IntArray,
        context: IntArray,
        window_columns: int | None = None,
    ) -> StepOutput:
        """Compute the rows of a step and store their keys and state in the cache.

        Args:
            tokens, q_start, q_len, slots, block_table, context, window_columns: int32, as
                :func:`di_model.batch.build_batch` takes them, or NumPy arrays or buffers.

        Returns:
            Rows that the next step overwrites.

        Raises:
            SlotMapError: the arrays do not describe a step of this layout.
            IndexError: a slot, block or position that the caches or the model do not have. Nothing is computed then.
        """
        try:
            hidden, features = self._cached.run(
                tokens, q_start, q_len, slots, block_table, context, window_columns=window_columns
            )
        except ValueError as error:
            raise SlotMapError(str(error)) from None
        return StepOutput(hidden, features)

    def draw(
        self,
        tokens: IntArray,
        q_start: IntArray,
        q_len: IntArray,
        slots: IntArray,
        block_table: IntArray,
        context: IntArray,
        *,
        parameters: bytes,
    ) -> NDArray[np.int32]:
        """Compute a step in which every row draws the token behind it, in one call.

        Args:
            tokens, q_start, q_len, slots, block_table, context: see :meth:`forward`.
            parameters: a record of ``di_kernels.ops.sampling.PARAMETERS`` for each row, as bytes.

        Returns:
            int32 ``[rows]``, those of :meth:`forward`, :meth:`logits` and :func:`di_kernels.ops.sampling.choose` at
            the position behind each row; -1 where the logits are not finite.

        Raises:
            SamplingParametersError: parameters out of range, or not a record for each row.
            SlotMapError, IndexError: as of :meth:`forward`. Nothing is computed then.
        """
        try:
            return self._cached.draw(
                tokens, q_start, q_len, slots, block_table, context, parameters=parameters
            )
        except SamplingParametersError:
            raise
        except ValueError as error:
            raise SlotMapError(str(error)) from None

    @property
    def workspace_bytes(self) -> int:
        """Memory for intermediate values: what the largest step so far has needed."""
        return self._plan.workspace_bytes

    def logits(self, hidden: Tensor, rows: NDArray[np.int64] | Tensor | None = None) -> Tensor:
        """Float32 logits ``[n, vocab]`` of rows ``rows [n]`` (int64) of ``hidden``, or of all.

        The next call overwrites them.
        """
        return self._plan.logits(hidden, rows)


def model_part(model: Model) -> ModelPart:
    """The parts of a model."""
    text, draft = model.config.text, model.draft
    return ModelPart(
        bfloat16=model.numerics.dtype is torch.bfloat16,
        embed=model.weights.embed,
        head=model.weights.head,
        norm=_float32(model.weights.norm),
        streams=text.hc_mult,
        eps=text.rms_norm_eps,
        hc_eps=text.hc_eps,
        sinkhorn_iters=text.hc_sinkhorn_iters,
        layers=tuple(map(_layer, model.layers)),
        draft=None
        if draft is None
        else DraftContextPart(
            main_proj=_projections(model.numerics)(draft.weights.main_proj),
            main_norm=_float32(draft.weights.main_norm),
            windows=tuple(_window(layer.attention) for layer in draft.layers),
        ),
    )


def caches_of(model: Model, cache: CachePool) -> Caches:
    """The views of a cache that a plan of the model reads and writes."""
    layout, spec = cache.layout, cache.layout.spec
    return Caches(
        layers=tuple(
            LayerCaches(
                window=cache.window_ring(regions.layer),
                entries=None if regions.entries is None else cache.entries(regions.layer),
                index_values=None if regions.index is None else cache.index_values(regions.layer),
                index_scales=None if regions.index is None else cache.index_scales(regions.layer),
                compress=None if regions.compress is None else cache.compress_ring(regions.layer),
            )
            for regions in layout.layers
        ),
        head_dim=spec.head_dim,
        index_dim=spec.index_head_dim,
        window_format=spec.window_format,
        entry_format=spec.main_format,
        index_format=spec.index_format,
        block_size=spec.block_size,
        blocks=cache.num_blocks,
        slots=cache.num_slots,
        window=model.config.text.sliding_window,
        window_cells=layout.window_cells,
        compress_cells=layout.compress_cells,
    )


def _layer(layer: DecoderLayer) -> LayerPart:
    weights = layer.weights
    return LayerPart(
        attention_hyper=_hyper(weights.hc_attn),
        attention_norm=_float32(weights.attn_norm),
        attention=_attention(layer.attention),
        experts_hyper=_hyper(weights.hc_ffn),
        experts_norm=_float32(weights.ffn_norm),
        experts=_experts(layer.experts),
        engram=None if layer.engram is None else _engram(layer.engram),
        draft_feature=layer.role.draft_feature,
    )


def _attention(attention: Attention) -> AttentionPart:
    text, role, weights = attention.text, attention.role, attention.weights
    project = _projections(attention.numerics)
    compressor, index_keys, indexer = attention.compressor, attention.index_keys, attention.indexer
    return AttentionPart(
        ratio=role.ratio,
        heads=text.num_attention_heads,
        groups=text.o_groups,
        scale=attention.scale,
        window=_window(attention),
        wq_a=project(weights.wq_a),
        q_norm=_float32(weights.q_norm),
        wq_b=project(weights.wq_b),
        sink=weights.sink.contiguous(),
        wo_a=weights.wo_a,
        wo_b=project(weights.wo_b),
        kv_layer=role.kv_source if attention.sees_entries else None,
        compressor=None
        if compressor is None
        else CompressorPart(
            compressor.weights.wkv, compressor.weights.wgate, _float32(compressor.weights.norm)
        ),
        index_keys=None if index_keys is None else IndexKeysPart(index_keys.wk, _float32(index_keys.k_norm)),
        indexer=_indexer(indexer) if isinstance(indexer, Indexer) else None,
        recent_topk=indexer.topk if isinstance(indexer, RecentEntries) else 0,
    )


def _window(attention: Attention) -> WindowPart:
    return WindowPart(
        layer=attention.role.index,
        wkv=_projections(attention.numerics)(attention.weights.wkv),
        kv_norm=_float32(attention.weights.kv_norm),
        rope=attention.rope_table,
    )


def _indexer(indexer: Indexer) -> IndexerPart:
    text, role = indexer.text, indexer.role
    use = CandidateUse.NONE
    if role.candidate_source is not None:
        use = CandidateUse.SOURCE if role.is_candidate_source else CandidateUse.CONSUMER
    assert role.index_k_source is not None  # an index source has one
    return IndexerPart(
        heads=text.index_n_heads,
        dim=text.index_head_dim,
        topk=text.index_topk,
        block_size=text.candidate_block_size,
        top_blocks=text.candidate_topk_blocks,
        key_layer=role.index_k_source,
        candidates=use,
        wq_b=_projections(indexer.numerics)(indexer.weights.wq_b),
        weights_proj=indexer.weights.weights_proj,
        scale=indexer.scale,
    )


def _experts(experts: MixtureOfExperts) -> ExpertsPart:
    weights = experts.weights
    return ExpertsPart(
        gate=weights.gate,
        bias=weights.bias.contiguous(),
        top_k=experts.top_k,
        scale=experts.scale,
        limit=experts.limit,
        experts_weights=weights.experts,
        shared_weights=weights.shared,
        quantize_experts=quantizes_input(weights.experts.w1[0], experts.numerics),
        quantize_shared=quantizes_input(weights.shared.w1[0], experts.numerics),
    )


def _engram(engram: Engram) -> EngramPart:
    weights, constants = engram.weights, engram.constants
    return EngramPart(
        vocabulary=engram.data.vocabulary,
        pad=engram.data.pad,
        multipliers=constants.multipliers,
        primes=constants.primes,
        offsets=constants.offsets,
        table=weights.table.data,
        table_scale=weights.table.scale,
        wkv=weights.wkv,
        weight=_float32(weights.q_weight) * _float32(weights.k_weight),
    )


def _hyper(weights: HyperWeights) -> HyperPart:
    return HyperPart(fn=weights.fn, base=weights.base.contiguous(), scale=weights.scale.contiguous())


def _projections(numerics: Numerics) -> Callable[[LinearWeight], Projection]:
    return lambda weight: Projection(weight, quantizes_input(weight, numerics))


def _float32(vector: Tensor) -> Tensor:
    """Norm weights as the kernels take them: themselves, where they are float32 already."""
    return vector.to(torch.float32).contiguous()
