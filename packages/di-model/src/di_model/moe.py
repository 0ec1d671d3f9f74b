"""Mixture-of-experts sub-layer (backbone specification, 4)."""

from __future__ import annotations

import torch
from di_kernels.ops.linear import linear
from di_kernels.ops.moe import combine, experts, route
from torch import Tensor

from di_model.config import ModelConfig
from di_model.numerics import Numerics
from di_model.projection import quantizes_input
from di_model.step import Step
from di_model.topology import LayerRole
from di_model.weights import MoeWeights


class MixtureOfExperts:
    """Routed experts plus one shared expert."""

    def __init__(
        self, config: ModelConfig, role: LayerRole, weights: MoeWeights, top_k: int, numerics: Numerics
    ) -> None:
        self.role, self.weights, self.top_k, self.numerics = role, weights, top_k, numerics
        self.limit, self.scale = config.text.swiglu_limit, config.text.routed_scaling_factor

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Rows ``x [rows, hidden]`` (already normalised) through their experts: ``[rows, hidden]``."""
        weights = self.weights
        logits = linear(x, weights.gate, out_dtype=torch.float32)
        ids, factors = route(logits, weights.bias, self.top_k, self.scale)
        step.observe("moe_expert", self.role.index, ids)
        step.observe("moe_weight", self.role.index, factors)
        quantize = quantizes_input(weights.experts.w1[0], self.numerics)
        routed = experts(x, ids, factors, weights.experts, self.limit, quantize_input=quantize)
        first = torch.zeros((x.shape[0], 1), dtype=torch.int32)
        quantize = quantizes_input(weights.shared.w1[0], self.numerics)
        shared = experts(x, first, None, weights.shared, self.limit, quantize_input=quantize)
        return combine(shared.squeeze(1), routed)
