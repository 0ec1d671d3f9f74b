"""Mixture of experts: routing, SwiGLU experts, combination (backbone specification, 4)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from di_kernels.dispatch import kernel
from di_kernels.errors import shown
from di_kernels.ops.checks import (
    ACTIVATIONS,
    check_dtype,
    check_integer,
    check_kind,
    check_real,
    check_shape,
    check_strided,
)
from di_kernels.ops.linear import LinearWeight


@dataclass(frozen=True, eq=False)
class ExpertWeights:
    """SwiGLU MLPs of equal shape: gate ``w1 [inter, dim]``, up ``w3 [inter, dim]``, down ``w2 [dim, inter]``.

    All matrices have one format, and are packed or none of them.

    The first use notes where the weights lie; from then on values may change in place, but not the memory: another
    ``data`` given to a tensor has no effect, and resizing or sharing its storage (``share_memory_``) is not allowed.
    Copies, also by pickling or ``dataclasses.replace``, note it for themselves.
    """

    w1: tuple[LinearWeight, ...]
    w3: tuple[LinearWeight, ...]
    w2: tuple[LinearWeight, ...]

    def __post_init__(self) -> None:
        for name, weights in (("w1", self.w1), ("w3", self.w3), ("w2", self.w2)):
            check_kind(name, weights, tuple)
            if len(weights) != len(self.w1):
                raise ValueError(f"{name} has {len(weights)} experts; w1 has {len(self.w1)}")
            for place, weight in enumerate(weights):
                check_kind(f"{name}[{place}]", weight, LinearWeight)
                _check_like(f"{name}[{place}]", weight, self.w1[0])

    @cached_property
    def bound(self) -> dict[str, object]:
        """What backends bound to these weights, by backend name. No field: it is not handed on to a changed copy."""
        return {}

    def __len__(self) -> int:
        return len(self.w1)

    def __reduce__(self) -> tuple[object, ...]:
        # torch.multiprocessing moves the memory of what it pickles, so this bank too has to look again.
        self.bound.clear()
        return type(self), (self.w1, self.w3, self.w2)


def _check_like(name: str, weight: LinearWeight, first: LinearWeight) -> None:
    if (weight.format, weight.is_packed) != (first.format, first.is_packed):
        raise ValueError(f"{name} is {_form(weight)}; w1[0] is {_form(first)}")


def _form(weight: LinearWeight) -> str:
    return f"{weight.format.name}, {'packed' if weight.is_packed else 'as stored'}"


def route(logits: Tensor, bias: Tensor, top_k: int, scale: float) -> tuple[Tensor, Tensor]:
    """Choose experts (4.1 to 4.3): scores ``sqrt(softplus(logit))``, ranked with the bias, weighted without it.

    Args:
        logits: float32 ``[rows, experts]``.
        bias: float32 ``[experts]``, or ``[rows, experts]`` where it differs by row (image tokens).
        top_k: experts per row.
        scale: factor of the normalised weights.

    Returns:
        ``(ids int32 [rows, top_k], weights float32 [rows, top_k])`` in descending order of biased score, equal scores
        lowest expert first.
    """
    check_dtype("logits", logits, torch.float32)
    check_shape("logits", logits, None, None)
    check_dtype("bias", bias, torch.float32)
    check_strided("bias", bias)
    rows, experts = logits.shape
    if bias.shape not in ((experts,), (rows, experts)):
        raise ValueError(f"bias has shape {list(bias.shape)}; expected [{experts}] or [{rows}, {experts}]")
    check_integer("top_k", top_k)
    check_real("scale", scale)
    if not 0 < top_k <= experts:
        raise ValueError(f"top_k is {shown(top_k)}; it must be within 1..{experts}")
    return cast(tuple[Tensor, Tensor], kernel("moe", "route", logits)(logits, bias, top_k, scale))


def experts(
    x: Tensor, ids: Tensor, weights: Tensor | None, bank: ExpertWeights, limit: float, *, quantize_input: bool
) -> Tensor:
    """Outputs of the chosen experts (4.4): clamp, SiLU(gate) * up * routing weight, down projection.

    Args:
        x: ``[rows, dim]`` bfloat16 or float32.
        ids: int32 ``[rows, k]`` expert of each slot; a negative id gives a zero output.
        weights: float32 ``[rows, k]`` routing weights, or None (shared expert: no weight).
        bank: the experts.
        limit: clamp of gate (above) and up (both sides).
        quantize_input: MXFP8 quantization of the inputs of all three projections.

    Returns:
        ``[rows, k, dim]`` in the type of ``x``, not yet summed.

    Raises:
        IndexError: an id beyond the bank; nothing is computed then.
    """
    check_dtype("x", x, *ACTIVATIONS)
    check_shape("x", x, None, None)
    check_dtype("ids", ids, torch.int32)
    check_shape("ids", ids, x.shape[0], None)
    if weights is not None:
        check_dtype("weights", weights, torch.float32)
        check_shape("weights", weights, *ids.shape)
    check_kind("bank", bank, ExpertWeights)
    check_real("limit", limit)
    check_kind("quantize_input", quantize_input, bool)
    return cast(Tensor, kernel("moe", "experts", x)(x, ids, weights, bank, limit, quantize_input))


def combine(shared: Tensor, routed: Tensor) -> Tensor:
    """``shared + sum over slots of routed`` (4.7): float32, shared first, then slots in order, rounded once.

    Args:
        shared: ``[rows, dim]``.
        routed: ``[rows, k, dim]`` of the same type.
    """
    check_dtype("shared", shared, *ACTIVATIONS)
    check_shape("shared", shared, None, None)
    check_dtype("routed", routed, shared.dtype)
    check_shape("routed", routed, shared.shape[0], None, shared.shape[1])
    return cast(Tensor, kernel("moe", "combine", shared)(shared, routed))
