"""Single operations against ``ops.npz``, for the reference formulas and for the kernels of a backend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from di_kernels.ops import attention, formats, hyper, indexer, moe
from di_kernels.ops import linear as linears
from di_kernels.ops.formats import EntryFormat
from di_kernels.ops.hyper import HyperConstants, HyperMixes
from di_kernels.ops.linear import LinearWeight
from di_kernels.ops.rope import YarnScaling, rope_frequencies, rope_rows
from di_kernels.reference import attention as reference_attention
from di_kernels.reference import formats as reference_formats
from di_kernels.reference import hyper as reference_hyper
from di_kernels.reference import indexer as reference_indexer
from di_kernels.reference import linear as reference_linear
from di_kernels.reference import moe as reference_moe
from torch import Tensor

from di_model.golden.files import CaseResult, GoldenFile, never_silent

CLOSE = 1e-6
"""Allowed difference of float32 values below about 2 that pass through an exponential."""
ULP = 1.2e-7
"""One unit in the last place of a float32 just below 2."""
RELEASED_ROPE = {
    "plain": (10000.0, None),
    "compressed": (160000.0, YarnScaling(16.0, 32.0, 1.0, 65536)),
}
"""Base and YaRN parameters of the released rotary tables."""
GATE_SCALE = 1.5
HYPER = HyperConstants(eps=1e-20, hc_eps=1e-6, sinkhorn_iters=20)


class Encode(Protocol):
    def __call__(self, x: Tensor, entry: EntryFormat, /) -> tuple[Tensor, Tensor]: ...


class Decode(Protocol):
    def __call__(
        self, codes: Tensor, scales: Tensor, entry: EntryFormat, dtype: torch.dtype, /
    ) -> Tensor: ...


class Linear(Protocol):
    def __call__(self, x: Tensor, weight: LinearWeight, /) -> Tensor: ...


class Attention(Protocol):
    def __call__(self, q: Tensor, keys: Tensor, index: Tensor, sink: Tensor, scale: float, /) -> Tensor: ...


class Coefficients(Protocol):
    def __call__(
        self, z: Tensor, base: Tensor, scale: Tensor, constants: HyperConstants, m: int, /
    ) -> HyperMixes: ...


class Candidates(Protocol):
    def __call__(self, scores: Tensor, visible: Tensor, block_size: int, top_blocks: int, /) -> Tensor: ...


class Route(Protocol):
    def __call__(
        self, logits: Tensor, bias: Tensor, top_k: int, scale: float, /
    ) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class OperationSet:
    """The operations that ``ops.npz`` covers, from one source; signatures of :mod:`di_kernels.ops`.

    ``linear`` quantizes its input and returns the type of its input.
    """

    encode: Encode
    decode: Decode
    linear: Linear
    gathered_attention: Attention
    hyper_coefficients: Coefficients
    candidate_blocks: Candidates
    route: Route


def reference_operations() -> OperationSet:
    """The formulas in plain torch."""
    return OperationSet(
        encode=reference_formats.encode,
        decode=reference_formats.decode,
        linear=lambda x, weight: reference_linear.linear(x, weight, True, x.dtype),
        gathered_attention=reference_attention.gathered_attention,
        hyper_coefficients=reference_hyper.hyper_coefficients,
        candidate_blocks=reference_indexer.candidate_blocks,
        route=reference_moe.route,
    )


def dispatched_operations() -> OperationSet:
    """What the engine calls: the kernels of the backend that holds the tensors."""
    return OperationSet(
        encode=formats.encode,
        decode=formats.decode,
        linear=lambda x, weight: linears.linear(x, weight, quantize_input=True),
        gathered_attention=attention.gathered_attention,
        hyper_coefficients=hyper.hyper_coefficients,
        candidate_blocks=indexer.candidate_blocks,
        route=moe.route,
    )


@never_silent
def check_operations(path: str | Path, operations: OperationSet) -> Iterator[CaseResult]:
    """Cases of ``ops.npz``: quantizers, products and attention bit for bit, choices equal, the rest close."""
    file = GoldenFile(path)
    for covered, check in (
        ("quant.x", _quantizers),
        ("gemm.a", _products),
        ("attn.q", _attention),
        ("hc.mixes", _hyper),
        ("cand.scores", _candidates),
        ("gate.x", _gate),
    ):
        if covered in file:
            yield from check(file, operations)
    if "rope.positions" in file:
        yield from _rope(file)
    yield from file.leftovers("exact_f64")  # beside the rounded results, which are the criterion


def _quantizers(file: GoldenFile, operations: OperationSet) -> Iterator[CaseResult]:
    x = file["quant.x"]
    for name, entry, codes_name, scales_name in (
        ("mxfp8", EntryFormat.FP8, "code", "scale_e8m0"),
        ("mxfp4", EntryFormat.MXFP4, "packed", "scale_e8m0"),
        ("kvfp4", EntryFormat.FP4, "packed", "scale_e4m3"),
    ):
        codes, scales = operations.encode(x, entry)
        yield file.equal(f"{name} codes", codes, file[f"{name}.{codes_name}"])
        yield file.equal(f"{name} scales", scales, file[f"{name}.{scales_name}"])
        values = operations.decode(codes, scales, entry, torch.bfloat16)
        yield file.equal(f"{name} values", values, file[f"{name}.dequant"])


def _products(file: GoldenFile, operations: OperationSet) -> Iterator[CaseResult]:
    a = file["gemm.a"]
    fp8 = LinearWeight.fp8(file["gemm.w_fp8"], file["gemm.w_fp8_scale"])
    fp4 = LinearWeight.mxfp4(file["gemm.w_fp4"], file["gemm.w_fp4_scale"])
    yield file.equal("FP8 product", operations.linear(a, fp8), file["gemm.fp8.out"])
    yield file.equal("MXFP4 product", operations.linear(a, fp4), file["gemm.fp4.out"])


def _attention(file: GoldenFile, operations: OperationSet) -> Iterator[CaseResult]:
    q, keys, index, sink = (file[f"attn.{name}"] for name in ("q", "kv", "idx", "sink"))
    scale = q.shape[-1] ** -0.5
    out = operations.gathered_attention(q, keys, index, sink, scale)
    yield file.equal("attention", out, file["attn.out"])
    if "attn.exact_f64" in file:
        exact = operations.gathered_attention(q.float(), keys.float(), index, sink, scale)
        yield file.within("attention in float32", exact, file["attn.exact_f64"], 1e-5)


def _hyper(file: GoldenFile, operations: OperationSet) -> Iterator[CaseResult]:
    m = file["hc.pre"].shape[1]
    mixes = operations.hyper_coefficients(file["hc.mixes"], file["hc.base"], file["hc.scale"], HYPER, m)
    for name, value in (("pre", mixes.pre), ("post", mixes.post), ("comb", mixes.comb)):
        yield file.within(f"hyper-connection {name}", value, file[f"hc.{name}"], CLOSE)


def _candidates(file: GoldenFile, operations: OperationSet) -> Iterator[CaseResult]:
    scores = file["cand.scores"]
    visible = (scores > -torch.inf).sum(dim=1).to(torch.int32)
    position = torch.arange(scores.shape[1])
    for key in file.keys:
        if not key.startswith("cand.keep_b"):
            continue
        block_size, top_blocks = (int(part[1:]) for part in key.removeprefix("cand.keep_").split("_"))
        blocks = operations.candidate_blocks(scores, visible, block_size, top_blocks)
        kept = (position[None, :, None] // block_size == blocks[:, None, :]).any(dim=2)
        yield file.equal(f"candidates, {top_blocks} blocks of {block_size}", kept, file[key])


def _gate(file: GoldenFile, operations: OperationSet) -> Iterator[CaseResult]:
    image = file["gate.image"]
    bias = torch.where(image[:, None], file["gate.bias_vl"], file["gate.bias"])
    logits = file["gate.x"] @ file["gate.weight"].T
    ids, weights = operations.route(logits, bias, file["gate.topk_expert"].shape[1], GATE_SCALE)
    yield file.equal("chosen experts", ids, file["gate.topk_expert"])
    yield file.within("routing weights", weights, file["gate.topk_weight"], CLOSE)


def _rope(file: GoldenFile) -> Iterator[CaseResult]:
    positions = file["rope.positions"]
    for name, (theta, yarn) in RELEASED_ROPE.items():
        if f"rope.{name}.cos" not in file:
            continue
        half = file[f"rope.{name}.cos"].shape[1]
        frequencies = rope_frequencies(2 * half, theta, yarn)
        rows = rope_rows(frequencies, positions)
        yield file.within(f"{name} rotary cosines", rows[:, :half], file[f"rope.{name}.cos"], ULP)
        yield file.within(f"{name} rotary sines", rows[:, half:], file[f"rope.{name}.sin"], ULP)
