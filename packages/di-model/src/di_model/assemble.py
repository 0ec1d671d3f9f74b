"""Building the typed weights of a model from its tensors by name (checkpoint spec, sections 4 and 9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from di_kernels.ops.engram import EngramTable
from di_kernels.ops.linear import LinearWeight
from di_kernels.ops.moe import ExpertWeights
from torch import Tensor

from di_model.config import ModelConfig
from di_model.tensors import expected_tensors, is_draft_tensor
from di_model.topology import LayerRole
from di_model.weights import (
    AttentionWeights,
    CompressorWeights,
    DraftWeights,
    EngramWeights,
    HyperWeights,
    IndexerWeights,
    LayerWeights,
    ModelWeights,
    MoeWeights,
)

VISION_PREFIXES = ("vision.", "aligner.", "image_")
WIDE_TYPES = {"F32": torch.float32, "BF16": torch.bfloat16}
"""Torch types of what a model stores in more than one byte; all else is uint8."""


def assemble(config: ModelConfig, tensors: Mapping[str, Tensor], *, draft: bool = True) -> ModelWeights:
    """The model's weights as views of ``tensors``.

    Args:
        config: configuration that the tensors belong to.
        tensors: every tensor by canonical name, in the dtypes and shapes of
            :func:`~di_model.tensors.expected_tensors`; one-byte types as uint8.
        draft: whether to build the draft model, if the configuration has one.

    Raises KeyError for an absent tensor.
    """
    return _Assembler(config, tensors).model(draft and config.text.num_nextn_predict_layers > 0)


def outline(config: ModelConfig, *, draft: bool = True) -> ModelWeights:
    """The weights of a checkpoint of this configuration, shapes and types only: tensors of torch's meta device."""
    tensors = {
        name: torch.empty(spec.shape, dtype=WIDE_TYPES.get(spec.dtype, torch.uint8), device="meta")
        for name, spec in expected_tensors(config).items()
        if draft or not is_draft_tensor(name)
    }
    return assemble(config, tensors, draft=draft)


class _Assembler:
    def __init__(self, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
        self.text = config.text
        self.tensors = tensors
        quantized = config.quantization is not None
        self.fp8: Callable[[str], LinearWeight] = self._fp8 if quantized else self.dense
        self.mxfp4: Callable[[str], LinearWeight] = self._mxfp4 if quantized else self.dense

    def dense(self, name: str) -> LinearWeight:
        return LinearWeight.dense(self.tensors[f"{name}.weight"])

    def _fp8(self, name: str) -> LinearWeight:
        return LinearWeight.fp8(self.tensors[f"{name}.weight"], self.tensors[f"{name}.scale"])

    def _mxfp4(self, name: str) -> LinearWeight:
        return LinearWeight.mxfp4(self.tensors[f"{name}.weight"], self.tensors[f"{name}.scale"])

    def vector(self, name: str) -> Tensor:
        return self.tensors[f"{name}.weight"]

    def model(self, draft: bool) -> ModelWeights:
        return ModelWeights(
            embed=self.tensors["embed.weight"],
            head=self.dense("head"),
            norm=self.vector("norm"),
            layers=tuple(
                self.layer(f"layers.{role.index}", role, self.text.n_routed_experts)
                for role in self.text.layers
            ),
            draft=self.draft() if draft else None,
            vision={
                name: tensor for name, tensor in self.tensors.items() if name.startswith(VISION_PREFIXES)
            },
        )

    def draft(self) -> DraftWeights:
        roles = self.text.draft_layers
        last = f"mtp.{len(roles) - 1}"
        return DraftWeights(
            layers=tuple(
                self.layer(f"mtp.{j}", role, self.text.dspark_n_routed_experts)
                for j, role in enumerate(roles)
            ),
            main_proj=self.fp8("mtp.0.main_proj"),
            main_norm=self.vector("mtp.0.main_norm"),
            norm=self.vector(f"{last}.norm"),
            markov_embed=self.vector(f"{last}.markov_head.embed"),
            markov_head=self.dense(f"{last}.markov_head.head"),
            confidence=self.dense(f"{last}.confidence_head.proj"),
        )

    def layer(self, prefix: str, role: LayerRole, num_experts: int) -> LayerWeights:
        return LayerWeights(
            attn_norm=self.vector(f"{prefix}.attn_norm"),
            ffn_norm=self.vector(f"{prefix}.ffn_norm"),
            hc_attn=self.hyper(f"{prefix}.hc_attn"),
            hc_ffn=self.hyper(f"{prefix}.hc_ffn"),
            attn=self.attention(f"{prefix}.attn", role),
            moe=self.moe(f"{prefix}.ffn", num_experts),
            engram=None if role.engram is None else self.engram(f"{prefix}.engram"),
        )

    def hyper(self, prefix: str) -> HyperWeights:
        return HyperWeights(
            fn=self.tensors[f"{prefix}_fn"],
            base=self.tensors[f"{prefix}_base"],
            scale=self.tensors[f"{prefix}_scale"],
        )

    def attention(self, prefix: str, role: LayerRole) -> AttentionWeights:
        return AttentionWeights(
            wq_a=self.fp8(f"{prefix}.wq_a"),
            q_norm=self.vector(f"{prefix}.q_norm"),
            wq_b=self.fp8(f"{prefix}.wq_b"),
            wkv=self.fp8(f"{prefix}.wkv"),
            kv_norm=self.vector(f"{prefix}.kv_norm"),
            sink=self.tensors[f"{prefix}.attn_sink"],
            wo_a=self.fp8(f"{prefix}.wo_a"),
            wo_b=self.fp8(f"{prefix}.wo_b"),
            compressor=self.compressor(f"{prefix}.compressor", role) if role.is_kv_source else None,
            indexer=self.indexer(f"{prefix}.indexer", role) if role.is_index_source else None,
        )

    def compressor(self, prefix: str, role: LayerRole) -> CompressorWeights:
        return CompressorWeights(
            wkv=self.dense(f"{prefix}.wkv"),
            wgate=None if role.ratio == 1 else self.dense(f"{prefix}.wgate"),
            norm=self.vector(f"{prefix}.norm"),
        )

    def indexer(self, prefix: str, role: LayerRole) -> IndexerWeights:
        own_keys = role.is_index_k_source
        return IndexerWeights(
            wq_b=self.fp8(f"{prefix}.wq_b"),
            weights_proj=self.dense(f"{prefix}.weights_proj"),
            wk=self.dense(f"{prefix}.wk") if own_keys else None,
            k_norm=self.vector(f"{prefix}.k_norm") if own_keys else None,
        )

    def moe(self, prefix: str, num_experts: int) -> MoeWeights:
        names = [f"{prefix}.experts.{expert}" for expert in range(num_experts)]
        return MoeWeights(
            gate=self.dense(f"{prefix}.gate"),
            bias=self.tensors[f"{prefix}.gate.bias"],
            bias_vl=self.tensors[f"{prefix}.gate.bias_vl"],
            experts=self.bank(names, self.mxfp4),
            shared=self.bank([f"{prefix}.shared_experts"], self.fp8),
        )

    def bank(self, names: list[str], read: Callable[[str], LinearWeight]) -> ExpertWeights:
        return ExpertWeights(
            w1=tuple(read(f"{name}.w1") for name in names),
            w3=tuple(read(f"{name}.w3") for name in names),
            w2=tuple(read(f"{name}.w2") for name in names),
        )

    def engram(self, prefix: str) -> EngramWeights:
        return EngramWeights(
            table=EngramTable(self.vector(f"{prefix}.embed"), self.tensors.get(f"{prefix}.embed.scale")),
            wkv=self.fp8(f"{prefix}.wkv"),
            q_weight=self.tensors[f"{prefix}.q_weight"],
            k_weight=self.tensors[f"{prefix}.k_weight"],
        )
