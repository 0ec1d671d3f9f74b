"""The tensors that a checkpoint of a given configuration holds: name, dtype, shape and part of the model.

Source: checkpoint spec, section 4. Names are without the optional ``model.`` prefix.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from di_model.config import SCALE_BLOCK, ModelConfig, TextConfig, VisionConfig
from di_model.topology import LayerRole

DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "F32": 4,
        "BF16": 2,
        "F16": 2,
        "F8_E4M3": 1,
        "F8_E8M0": 1,
        "I8": 1,
        "U8": 1,
        "I16": 2,
        "I32": 4,
        "I64": 8,
        "BOOL": 1,
    }
)
"""Bytes of one element by safetensors dtype tag; a loader recognises these and no others (spec 3.1)."""

HC_COEFFICIENT_GROUPS = 3
"""Scalars of a hyper-connection scale: pre, post, mix."""
QKV = 3
IMAGE_CHANNELS = 3


class Part(enum.Enum):
    """What a tensor belongs to, for accounting."""

    EMBEDDING = "embedding"
    HEAD = "output head"
    NORM = "norms"
    ATTENTION = "attention"
    COMPRESSOR = "compressor"
    INDEXER = "indexer"
    HYPER = "hyper-connections"
    ROUTER = "router"
    EXPERTS = "routed experts"
    SHARED_EXPERTS = "shared experts"
    ENGRAM_TABLE = "Engram tables"
    ENGRAM = "Engram projections"
    DRAFT_HEAD = "draft projections"
    VISION = "vision"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One stored tensor."""

    name: str
    dtype: str
    """safetensors tag, a key of DTYPE_BYTES."""
    shape: tuple[int, ...]
    part: Part
    layer: int | None
    """Layer index, draft layers counting on from ``num_hidden_layers``; None outside the layers."""
    parameters: int
    """Weights it stands for: two per byte of an MXFP4 matrix, none for a scale."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


def expected_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """Every tensor of a checkpoint of this configuration, by name: text, draft and vision parts."""
    inventory = _Inventory(config)
    specs = (*inventory.top(), *inventory.backbone(), *inventory.draft(), *_vision(config))
    return {spec.name: spec for spec in specs}


def is_draft_tensor(name: str) -> bool:
    """Whether only the draft model needs the tensor."""
    return name.startswith("mtp.")


def is_ignored_tensor(name: str) -> bool:
    """Copies of embedding and head in a draft layer: the draft model uses those of the backbone (4.7)."""
    fields = name.split(".")
    return (
        len(fields) == 4 and fields[0] == "mtp" and fields[2] in ("embed", "head") and fields[3] == "weight"
    )


def _plain(name: str, dtype: str, shape: tuple[int, ...], part: Part, layer: int | None) -> TensorSpec:
    return TensorSpec(name, dtype, shape, part, layer, math.prod(shape))


class _Inventory:
    """Generates the text model's tensors; the methods follow the tables 4.1 to 4.7."""

    def __init__(self, config: ModelConfig) -> None:
        self.text: TextConfig = config.text
        self.quantized = config.quantization is not None

    def _fp8(self, name: str, n: int, k: int, part: Part, layer: int | None) -> Iterator[TensorSpec]:
        """A linear ``[n, k]`` with one scale per 32x32 block (3.3)."""
        yield _plain(f"{name}.weight", "F8_E4M3" if self.quantized else "BF16", (n, k), part, layer)
        if self.quantized:
            shape = (math.ceil(n / SCALE_BLOCK), math.ceil(k / SCALE_BLOCK))
            yield TensorSpec(f"{name}.scale", "F8_E8M0", shape, part, layer, 0)

    def _fp4(self, name: str, n: int, k: int, part: Part, layer: int | None) -> Iterator[TensorSpec]:
        """A linear ``[n, k]``, two codes a byte, one scale per row and 32 inputs (3.4)."""
        if not self.quantized:
            yield _plain(f"{name}.weight", "BF16", (n, k), part, layer)
            return
        yield TensorSpec(f"{name}.weight", "I8", (n, k // 2), part, layer, n * k)
        yield TensorSpec(f"{name}.scale", "F8_E8M0", (n, k // SCALE_BLOCK), part, layer, 0)

    def _table(self, name: str, rows: int, dim: int, layer: int) -> Iterator[TensorSpec]:
        """An Engram table, one scale per row and 32 columns (3.5)."""
        dtype = "F8_E4M3" if self.quantized else "BF16"
        yield _plain(f"{name}.weight", dtype, (rows, dim), Part.ENGRAM_TABLE, layer)
        if self.quantized:
            shape = (rows, dim // SCALE_BLOCK)
            yield TensorSpec(f"{name}.scale", "F8_E8M0", shape, Part.ENGRAM_TABLE, layer, 0)

    def top(self) -> Iterator[TensorSpec]:
        """4.1"""
        text = self.text
        matrix = (text.vocab_size, text.hidden_size)
        yield _plain("embed.weight", "BF16", matrix, Part.EMBEDDING, None)
        yield _plain("head.weight", "BF16", matrix, Part.HEAD, None)
        yield _plain("norm.weight", "BF16", (text.hidden_size,), Part.NORM, None)

    def backbone(self) -> Iterator[TensorSpec]:
        """4.2 to 4.6"""
        for role in self.text.layers:
            prefix = f"layers.{role.index}"
            yield from self._layer(prefix, role.index, self.text.n_routed_experts)
            yield from self._sparse_attention(f"{prefix}.attn", role)
            if role.engram is not None:
                yield from self._engram(f"{prefix}.engram", role.index, role.engram)

    def draft(self) -> Iterator[TensorSpec]:
        """4.2 and 4.7"""
        text = self.text
        for j, role in enumerate(text.draft_layers):
            prefix = f"mtp.{j}"
            yield from self._layer(prefix, role.index, text.dspark_n_routed_experts)
            if j == 0:
                features = len(text.dspark_target_layer_ids) * text.hidden_size
                name = f"{prefix}.main_proj"
                yield from self._fp8(name, text.hidden_size, features, Part.DRAFT_HEAD, role.index)
                yield _plain(f"{prefix}.main_norm.weight", "BF16", (text.hidden_size,), Part.NORM, role.index)
            if j == len(text.draft_layers) - 1:
                yield from self._draft_head(prefix, role.index)

    def _draft_head(self, prefix: str, layer: int) -> Iterator[TensorSpec]:
        text = self.text
        rank = text.dspark_markov_rank
        markov = (text.vocab_size, rank)
        yield _plain(f"{prefix}.norm.weight", "BF16", (text.hidden_size,), Part.NORM, layer)
        yield _plain(f"{prefix}.markov_head.embed.weight", "BF16", markov, Part.DRAFT_HEAD, layer)
        yield _plain(f"{prefix}.markov_head.head.weight", "BF16", markov, Part.DRAFT_HEAD, layer)
        shape = (1, text.hidden_size + rank)
        yield _plain(f"{prefix}.confidence_head.proj.weight", "BF16", shape, Part.DRAFT_HEAD, layer)

    def _layer(self, prefix: str, layer: int, num_experts: int) -> Iterator[TensorSpec]:
        """4.2"""
        for half in ("attn", "ffn"):
            yield _plain(f"{prefix}.{half}_norm.weight", "BF16", (self.text.hidden_size,), Part.NORM, layer)
            yield from self._hyper(f"{prefix}.hc_{half}", layer)
        yield from self._attention(f"{prefix}.attn", layer)
        yield from self._experts(f"{prefix}.ffn", layer, num_experts)

    def _hyper(self, prefix: str, layer: int) -> Iterator[TensorSpec]:
        m = self.text.hc_mult
        rows = m * (m + 2)
        yield _plain(f"{prefix}_fn", "F32", (rows, m * self.text.hidden_size), Part.HYPER, layer)
        yield _plain(f"{prefix}_base", "F32", (rows,), Part.HYPER, layer)
        yield _plain(f"{prefix}_scale", "F32", (HC_COEFFICIENT_GROUPS,), Part.HYPER, layer)

    def _attention(self, prefix: str, layer: int) -> Iterator[TensorSpec]:
        text, part = self.text, Part.ATTENTION
        hidden, rank, width = text.hidden_size, text.q_lora_rank, text.num_attention_heads * text.head_dim
        latent = text.o_groups * text.o_lora_rank
        yield from self._fp8(f"{prefix}.wq_a", rank, hidden, part, layer)
        yield _plain(f"{prefix}.q_norm.weight", "BF16", (rank,), Part.NORM, layer)
        yield from self._fp8(f"{prefix}.wq_b", width, rank, part, layer)
        yield from self._fp8(f"{prefix}.wkv", text.head_dim, hidden, part, layer)
        yield _plain(f"{prefix}.kv_norm.weight", "BF16", (text.head_dim,), Part.NORM, layer)
        yield _plain(f"{prefix}.attn_sink", "F32", (text.num_attention_heads,), part, layer)
        yield from self._fp8(f"{prefix}.wo_a", latent, width // text.o_groups, part, layer)
        yield from self._fp8(f"{prefix}.wo_b", hidden, latent, part, layer)

    def _experts(self, prefix: str, layer: int, count: int) -> Iterator[TensorSpec]:
        text = self.text
        hidden, inter, shared = text.hidden_size, text.moe_intermediate_size, text.shared_intermediate_size
        yield _plain(f"{prefix}.gate.weight", "BF16", (count, hidden), Part.ROUTER, layer)
        yield _plain(f"{prefix}.gate.bias", "F32", (count,), Part.ROUTER, layer)
        yield _plain(f"{prefix}.gate.bias_vl", "F32", (count,), Part.ROUTER, layer)
        for projection, n, k in (("w1", shared, hidden), ("w3", shared, hidden), ("w2", hidden, shared)):
            name = f"{prefix}.shared_experts.{projection}"
            yield from self._fp8(name, n, k, Part.SHARED_EXPERTS, layer)
        for expert in range(count):
            for projection, n, k in (("w1", inter, hidden), ("w3", inter, hidden), ("w2", hidden, inter)):
                name = f"{prefix}.experts.{expert}.{projection}"
                yield from self._fp4(name, n, k, Part.EXPERTS, layer)

    def _sparse_attention(self, prefix: str, role: LayerRole) -> Iterator[TensorSpec]:
        """4.3 to 4.5: what a layer has only where it is a source."""
        text, layer = self.text, role.index
        if role.is_kv_source:
            matrix = (text.head_dim, text.hidden_size)
            yield _plain(f"{prefix}.compressor.wkv.weight", "BF16", matrix, Part.COMPRESSOR, layer)
            yield _plain(f"{prefix}.compressor.norm.weight", "BF16", (text.head_dim,), Part.NORM, layer)
            if role.ratio != 1:
                yield _plain(f"{prefix}.compressor.wgate.weight", "BF16", matrix, Part.COMPRESSOR, layer)
        if role.is_index_k_source:
            matrix = (text.index_head_dim, text.head_dim)
            yield _plain(f"{prefix}.indexer.wk.weight", "BF16", matrix, Part.INDEXER, layer)
            yield _plain(f"{prefix}.indexer.k_norm.weight", "BF16", (text.index_head_dim,), Part.NORM, layer)
        if role.is_index_source:
            rows = text.index_n_heads * text.index_head_dim
            yield from self._fp8(f"{prefix}.indexer.wq_b", rows, text.q_lora_rank, Part.INDEXER, layer)
            matrix = (text.index_n_heads, text.hidden_size)
            yield _plain(f"{prefix}.indexer.weights_proj.weight", "BF16", matrix, Part.INDEXER, layer)

    def _engram(self, prefix: str, layer: int, position: int) -> Iterator[TensorSpec]:
        """4.6"""
        text = self.text
        rows = text.engram_num_embeddings[position]
        yield from self._table(f"{prefix}.embed", rows, text.engram_head_dim, layer)
        n = (text.hc_mult + 1) * text.hidden_size
        yield from self._fp8(f"{prefix}.wkv", n, text.engram_features, Part.ENGRAM, layer)
        for side in ("q", "k"):
            shape = (text.hc_mult, text.hidden_size)
            yield _plain(f"{prefix}.{side}_weight", "BF16", shape, Part.ENGRAM, layer)


def _vision(config: ModelConfig) -> Iterator[TensorSpec]:
    """4.8 and the image delimiters of 4.1, all BF16."""
    hidden = config.text.hidden_size
    for name, shape in _vision_shapes(config.vision, hidden):
        yield _plain(name, "BF16", shape, Part.VISION, None)


def _vision_shapes(vision: VisionConfig, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, inner = vision.hidden_size, vision.intermediate_size
    for name in ("image_start", "image_end", "image_newline"):
        yield name, (hidden,)
    yield "vision.patch_embed.proj.weight", (width, IMAGE_CHANNELS * vision.patch_size**2)
    yield "vision.patch_embed.proj.bias", (width,)
    for block in range(vision.num_hidden_layers):
        prefix = f"vision.blocks.{block}"
        yield f"{prefix}.norm1.weight", (width,)
        yield f"{prefix}.norm2.weight", (width,)
        yield f"{prefix}.attn.wqkv.weight", (QKV * width, width)
        yield f"{prefix}.attn.wqkv.bias", (QKV * width,)
        yield f"{prefix}.attn.wo.weight", (width, width)
        yield f"{prefix}.attn.wo.bias", (width,)
        yield f"{prefix}.mlp.w1.weight", (2 * inner, width)
        yield f"{prefix}.mlp.w2.weight", (width, inner)
    yield "vision.norm.weight", (width,)
    yield "aligner.w1.weight", (hidden, width * vision.downsample_ratio**2)
    yield "aligner.w1.bias", (hidden,)
    yield "aligner.w2.weight", (hidden, hidden)
    yield "aligner.w2.bias", (hidden,)
