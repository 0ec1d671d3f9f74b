"""Plans: a model and its caches bound once to native objects, so that a step is one call.

The dataclasses here say what a plan is made of, in the terms of the kernels; shapes and formats are checked when a plan
is built. A plan computes what the operations of :mod:`di_kernels.ops` compute one by one, with the same kernels and the
same bits. It reads weights where they are and keeps the tensors alive. CPU only.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from di_kernels.cpu.arrays import empty
from di_kernels.errors import shown
from di_kernels.ops.checks import check_integer, check_kind, tensors_of
from di_kernels.ops.formats import EntryFormat
from di_kernels.ops.linear import LinearWeight
from di_kernels.ops.moe import ExpertWeights

IntArray = NDArray[np.int32] | Tensor | memoryview
"""int32 values, dense: what the scheduler's arrays are."""


@dataclass(frozen=True, eq=False)
class Projection:
    """A weight, and whether its input is quantized to MXFP8 first."""

    weight: LinearWeight
    quantize: bool


@dataclass(frozen=True, eq=False)
class HyperPart:
    """Hyper-connection of a sub-layer, float32: ``fn [m(m+2), m*dim]``, ``base [m(m+2)]``, ``scale [3]``."""

    fn: Tensor
    base: Tensor
    scale: Tensor


@dataclass(frozen=True, eq=False)
class WindowPart:
    """Window keys of a layer: whose ring, their projection, float32 norm ``[head_dim]`` and rotary table."""

    layer: int
    wkv: Projection
    kv_norm: Tensor
    rope: Tensor


@dataclass(frozen=True, eq=False)
class CompressorPart:
    """Producer of compressed entries; ``wgate`` at ratio 2 only."""

    wkv: LinearWeight
    wgate: LinearWeight | None
    norm: Tensor


@dataclass(frozen=True, eq=False)
class IndexKeysPart:
    """Producer of index keys from latents."""

    wk: LinearWeight
    norm: Tensor


class CandidateUse(enum.Enum):
    """What an indexer has to do with candidate blocks."""

    NONE = 0
    SOURCE = 1
    CONSUMER = 2


@dataclass(frozen=True, eq=False)
class IndexerPart:
    """Selection of ``topk`` entries by their index keys, those of layer ``key_layer``."""

    heads: int
    dim: int
    topk: int
    block_size: int
    top_blocks: int
    key_layer: int
    candidates: CandidateUse
    wq_b: Projection
    weights_proj: LinearWeight
    scale: float


@dataclass(frozen=True, eq=False)
class AttentionPart:
    """Attention of one layer. ``kv_layer`` owns the entries it reads; None: it sees its window only.

    ``recent_topk`` above 0 selects the latest entries in place of an indexer.
    """

    ratio: int
    heads: int
    groups: int
    scale: float
    window: WindowPart
    wq_a: Projection
    q_norm: Tensor
    wq_b: Projection
    sink: Tensor
    wo_a: LinearWeight
    wo_b: Projection
    kv_layer: int | None = None
    compressor: CompressorPart | None = None
    index_keys: IndexKeysPart | None = None
    indexer: IndexerPart | None = None
    recent_topk: int = 0


@dataclass(frozen=True, eq=False)
class ExpertsPart:
    """Router, routed experts and one shared expert; ``bias`` is float32 ``[experts]``."""

    gate: LinearWeight
    bias: Tensor
    top_k: int
    scale: float
    limit: float
    experts_weights: ExpertWeights
    shared_weights: ExpertWeights
    quantize_experts: bool
    quantize_shared: bool

    @property
    def experts(self) -> object:
        """The native object of the routed experts."""
        return _bound(self.experts_weights)

    @property
    def shared(self) -> object:
        """The native object of the shared expert."""
        return _bound(self.shared_weights)


@dataclass(frozen=True, eq=False)
class EngramPart:
    """N-gram memory of a layer; ``weight`` is float32 ``[m, dim]``, the product of the query and key weights."""

    vocabulary: Tensor
    pad: int
    multipliers: Tensor
    primes: Tensor
    offsets: Tensor
    table: Tensor
    table_scale: Tensor | None
    wkv: LinearWeight
    weight: Tensor


@dataclass(frozen=True, eq=False)
class LayerPart:
    """One decoder layer; ``draft_feature`` is the place of its trunk among the draft features."""

    attention_hyper: HyperPart
    attention_norm: Tensor
    attention: AttentionPart
    experts_hyper: HyperPart
    experts_norm: Tensor
    experts: ExpertsPart
    engram: EngramPart | None = None
    draft_feature: int | None = None


@dataclass(frozen=True, eq=False)
class DraftContextPart:
    """What keeps the draft layers' rings up to date: features, projected and normalised, then one ring a window."""

    main_proj: Projection
    main_norm: Tensor
    windows: tuple[WindowPart, ...]


@dataclass(frozen=True, eq=False)
class ModelPart:
    """A whole model. Activations are bfloat16, or float32; norm weights are float32."""

    bfloat16: bool
    embed: Tensor
    head: LinearWeight
    norm: Tensor
    streams: int
    eps: float
    hc_eps: float
    sinkhorn_iters: int
    layers: tuple[LayerPart, ...]
    draft: DraftContextPart | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Element type of activations."""
        return torch.bfloat16 if self.bfloat16 else torch.float32

    @property
    def feature_columns(self) -> int | None:
        """Columns of the draft features; None without a draft model."""
        return None if self.draft is None else self.draft.main_proj.weight.shape[1]


@dataclass(frozen=True, eq=False)
class LayerCaches:
    """Cache views of one layer (:class:`di_cache.CachePool`); None for what it does not own.

    window: ``[slots, window_cells, record]``. entries: ``[blocks, block_size/ratio, record]``.
    index_values, index_scales: ``[blocks, block_size/ratio, ...]``, float32 values have no scales.
    compress: float32 ``[slots, compress_cells, 2, head_dim]``.
    """

    window: Tensor
    entries: Tensor | None = None
    index_values: Tensor | None = None
    index_scales: Tensor | None = None
    compress: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Caches:
    """The pools that steps read and write, by layer id, and their sizes."""

    layers: tuple[LayerCaches, ...]
    head_dim: int
    index_dim: int
    window_format: EntryFormat
    entry_format: EntryFormat
    index_format: EntryFormat
    block_size: int
    blocks: int
    slots: int
    window: int
    window_cells: int
    compress_cells: int


class ModelPlan:
    """A model bound to its weights.

    Raises:
        ValueError, TypeError: a weight has another shape or type than its place; the message names it.
    """

    def __init__(self, model: ModelPart) -> None:
        from di_kernels import _native

        check_kind("model", model, ModelPart)
        self.model = model
        self.native = _native.ModelPlan(model)
        self._memory = memory_of("model", model)
        self._logits = _Rows(model.head.shape[0], torch.float32)

    @property
    def workspace_bytes(self) -> int:
        """Memory for intermediate values: what the largest step so far has needed."""
        return self.native.workspace_bytes

    def logits(self, hidden: Tensor, rows: NDArray[np.int64] | Tensor | None = None) -> Tensor:
        """Float32 ``[n, vocab]`` of rows ``rows [n]`` (int64) of ``hidden``, or of all; the next call overwrites them.

        Raises:
            IndexError: a row outside ``hidden``.
        """
        out = self._logits.first(hidden.shape[0] if rows is None else len(rows))
        self.native.logits(hidden, rows, out)
        return out


class CachedPlan:
    """A model bound to its weights and to the pools of one cache: computes steps. One at a time.

    Raises:
        ValueError, TypeError: the caches do not fit the model.
    """

    def __init__(self, plan: ModelPlan, caches: Caches) -> None:
        from di_kernels import _native

        model = plan.model
        self._native = _native.CachedPlan(plan.native, caches)
        self._memory = memory_of("caches", caches)
        self._window = caches.window
        self._hidden = _Rows(model.embed.shape[1], model.dtype)
        columns = model.feature_columns
        self._features = None if columns is None else _Rows(columns, model.dtype)

    def run(
        self,
        tokens: IntArray,
        q_start: IntArray,
        q_len: IntArray,
        slots: IntArray,
        block_table: IntArray,
        context: IntArray,
        window_columns: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the rows of a step and store their keys and state in the caches.

        Args:
            tokens: ``[rows]`` token ids, sequence by sequence.
            q_start: ``[sequences]`` position of each sequence's first row.
            q_len: ``[sequences]`` rows of each sequence.
            slots: ``[sequences]`` state slots.
            block_table: ``[sequences, width]``.
            context: ``[sequences, lookback]``; column ``k`` is the token at ``q_start - 1 - k``, or -1.
            window_columns: columns that window keys take in attention; None: the window's size.

        Returns:
            Normalised output rows ``[rows, dim]``, and draft features ``[rows, targets*dim]`` where there is a draft
            model. The next step overwrites both.

        Raises:
            ValueError: the arrays do not describe a step.
            IndexError: a slot, block or position outside its array; nothing is computed then.
        """
        count = len(tokens)
        hidden = self._hidden.first(count)
        features = None if self._features is None else self._features.first(count)
        self._native.run(
            tokens,
            q_start,
            q_len,
            slots,
            block_table,
            context,
            self._window if window_columns is None else window_columns,
            hidden,
            features,
        )
        return hidden, features

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
        """Compute a step in which every row draws the token behind it: :meth:`run`, :meth:`ModelPlan.logits` and
        :func:`di_kernels.ops.sampling.choose` in one call, with their bits.

        What the host does between two calls, after a step through large weights, it does from cold caches.

        Args:
            tokens, q_start, q_len, slots, block_table, context: see :meth:`run`.
            parameters: a record of ``di_kernels.ops.sampling.PARAMETERS`` for each row, as bytes.

        Returns:
            int32 ``[rows]``, -1 for a row whose logits are not finite.

        Raises:
            SamplingParametersError: a ValueError about the parameters; nothing is computed then.
            ValueError, IndexError: as of :meth:`run`.
        """
        out = np.empty(len(tokens), np.int32)
        self._native.draw(tokens, q_start, q_len, slots, block_table, context, self._window, parameters, out)
        return out


def memory_of(name: str, parts: object) -> list[torch.UntypedStorage]:
    """What holds the memory of all tensors, whatever becomes of them (``weight.data = other``): native code has its
    addresses."""
    return [tensor.untyped_storage() for _, tensor in tensors_of(name, parts)]


def _bound(bank: ExpertWeights) -> object:
    from di_kernels.cpu.moe import bound_bank

    return bound_bank(bank)


class _Rows:
    """Room for result rows, kept from call to call."""

    def __init__(self, columns: int, dtype: torch.dtype) -> None:
        self._room = empty(0, columns, dtype=dtype)
        self._first, self._count = self._room, 0

    def first(self, count: int) -> Tensor:
        """The first ``count`` rows, dense."""
        if count != self._count:
            if count > self._room.shape[0]:
                self._room = empty(count, self._room.shape[1], dtype=self._room.dtype)
            self._first, self._count = self._room[:count], count
        return self._first


_SIZES = ("block_size", "blocks", "slots", "window", "window_cells", "compress_cells")


def step_rows(
    sizes: tuple[int, int, int, int, int, int],
    *,
    tokens: IntArray,
    q_start: IntArray,
    q_len: IntArray,
    slots: IntArray,
    block_table: IntArray,
    context: IntArray,
) -> dict[str, list[int]]:
    """The arrays that a plan expands a step into, flat, by name; for tests.

    Args:
        sizes: block_size, blocks, slots, window, window_cells and compress_cells of the caches.
        tokens, q_start, q_len, slots, block_table, context: see :meth:`CachedPlan.run`.

    Raises:
        ValueError, IndexError: as in :meth:`CachedPlan.run`.
    """
    from di_kernels import _native

    check_kind("sizes", sizes, tuple)
    if len(sizes) != len(_SIZES):
        raise ValueError(f"sizes is {shown(sizes)}; it must hold {', '.join(_SIZES)}")
    for name, size in zip(_SIZES, sizes, strict=True):
        check_integer(f"{name} of sizes", size, 1)
    return _native.step_rows(tokens, q_start, q_len, slots, block_table, context, sizes)
