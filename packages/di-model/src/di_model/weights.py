"""Parameters of the model as typed records: what the checkpoint loader fills and both forward passes read.

Matrices keep their stored form (:class:`~di_kernels.ops.linear.LinearWeight`); vectors are plain tensors. Names follow
the checkpoint (checkpoint specification, sections 4 and 9).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from di_kernels.ops.engram import EngramTable
from di_kernels.ops.linear import LinearWeight
from di_kernels.ops.moe import ExpertWeights
from torch import Tensor


@dataclass(frozen=True, eq=False)
class HyperWeights:
    """Hyper-connection of one sub-layer, float32: ``fn [m(m+2), m*D]``, ``base [m(m+2)]``, ``scale [3]``."""

    fn: Tensor
    base: Tensor
    scale: Tensor


@dataclass(frozen=True, eq=False)
class CompressorWeights:
    """Producer of compressed KV: ``wkv``, ``wgate`` ``[hd, D]`` (no gate at ratio 1), ``norm [hd]``."""

    wkv: LinearWeight
    wgate: LinearWeight | None
    norm: Tensor


@dataclass(frozen=True, eq=False)
class IndexerWeights:
    """Query side of the indexer (index-source layers): ``wq_b [Hi*di, q]``, ``weights_proj [Hi, D]``.

    The key side is present on index-key sources only: ``wk [di, hd]``, ``k_norm [di]``.
    """

    wq_b: LinearWeight
    weights_proj: LinearWeight
    wk: LinearWeight | None
    k_norm: Tensor | None


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """Attention of one layer; ``sink`` is float32 ``[H]``."""

    wq_a: LinearWeight
    q_norm: Tensor
    wq_b: LinearWeight
    wkv: LinearWeight
    kv_norm: Tensor
    sink: Tensor
    wo_a: LinearWeight
    wo_b: LinearWeight
    compressor: CompressorWeights | None = None
    indexer: IndexerWeights | None = None


@dataclass(frozen=True, eq=False)
class MoeWeights:
    """Router ``gate [E, D]``, selection biases float32 ``[E]`` for text and image tokens, routed and shared experts.

    ``shared`` is a bank of one expert of width ``n_shared_experts * I``.
    """

    gate: LinearWeight
    bias: Tensor
    bias_vl: Tensor
    experts: ExpertWeights
    shared: ExpertWeights


@dataclass(frozen=True, eq=False)
class EngramWeights:
    """N-gram memory of one layer: the table, ``wkv [(m+1)*D, columns*dh]``, ``q_weight``, ``k_weight`` ``[m, D]``."""

    table: EngramTable
    wkv: LinearWeight
    q_weight: Tensor
    k_weight: Tensor


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """One decoder layer of the backbone or of the draft model."""

    attn_norm: Tensor
    ffn_norm: Tensor
    hc_attn: HyperWeights
    hc_ffn: HyperWeights
    attn: AttentionWeights
    moe: MoeWeights
    engram: EngramWeights | None = None


@dataclass(frozen=True, eq=False)
class DraftWeights:
    """Draft model: layers, feature projection ``main_proj [D, F*D]``, final norm, Markov and confidence heads.

    ``markov_embed`` is ``[V, r]``, ``markov_head`` ``[V, r]``, ``confidence`` ``[1, D+r]``.
    """

    layers: tuple[LayerWeights, ...]
    main_proj: LinearWeight
    main_norm: Tensor
    norm: Tensor
    markov_embed: Tensor
    markov_head: LinearWeight
    confidence: LinearWeight


@dataclass(frozen=True, eq=False)
class ModelWeights:
    """Everything in a checkpoint: ``embed [V, D]`` and ``head [V, D]`` are separate tensors.

    ``vision`` keeps the vision tower, the aligner and the three image vectors under their checkpoint names.
    """

    embed: Tensor
    head: LinearWeight
    norm: Tensor
    layers: tuple[LayerWeights, ...]
    draft: DraftWeights | None = None
    vision: Mapping[str, Tensor] = field(default_factory=dict)
