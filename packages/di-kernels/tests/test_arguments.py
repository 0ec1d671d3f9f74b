"""Every argument of every operation that is a tensor or holds some: whatever is no such tensor is refused by name.

A wrong rank or element type is never broadcast or converted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from di_kernels import _native
from di_kernels.cpu.linear import matrix
from di_kernels.ops.attention import EntryKeys, WindowKeys, gathered_attention, sparse_attention
from di_kernels.ops.compress import PairRows, compress_pairs
from di_kernels.ops.embedding import embed
from di_kernels.ops.engram import (
    EngramHash,
    EngramTable,
    engram_gather,
    engram_hash,
    engram_inject,
    engram_windows,
)
from di_kernels.ops.formats import EntryFormat, decode, decode_records, encode, encode_records, round_trip
from di_kernels.ops.hyper import (
    HyperConstants,
    HyperMixes,
    hyper_coefficients,
    hyper_mixes,
    hyper_post,
    hyper_pre,
    stream_mean,
)
from di_kernels.ops.indexer import IndexPages, candidate_blocks, candidate_entries, index_scores
from di_kernels.ops.linear import LinearWeight, grouped_linear, linear
from di_kernels.ops.moe import ExpertWeights, combine, experts, route
from di_kernels.ops.norm import rms_norm
from di_kernels.ops.rope import apply_rope, rope_rows, rope_table
from di_kernels.ops.sampling import (
    DrawPurpose,
    all_finite,
    apply_bias,
    apply_bitmask,
    apply_penalties,
    argmax,
    choose,
    describe_tokens,
    log_softmax,
    pack_parameters,
    philox,
    sample,
)
from di_kernels.ops.topk import topk_indices
from di_kernels.packing import pack
from torch import Tensor

F32, PLAIN = torch.float32, EntryFormat.FLOAT32


def f(*shape: int) -> Tensor:
    return torch.zeros(shape)


def i(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def wide(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.int64)


def weight(n: int, k: int) -> LinearWeight:
    return LinearWeight.dense(f(n, k))


def run_experts(x: Tensor, ids: Tensor, weights: Tensor, bank: ExpertWeights) -> Tensor:
    return experts(x, ids, weights, bank, 10.0, quantize_input=False)


BANK = ExpertWeights((weight(4, 8),), (weight(4, 8),), (weight(8, 4),))


MIX = HyperConstants(1e-20, 1e-6, 2)
WINDOW = WindowKeys(f(2, 5, 8), f(3, 8), PLAIN, i(3), i(3), i(3), i(3), i(3) + 1, 4)
ENTRIES = EntryKeys(f(2, 4, 8), PLAIN, i(1, 2), i(3), i(3, 2))
PACKED = pack_parameters(f(3).double(), wide(3), f(3).double() + 1, f(3).double(), wide(3))
CALLS: dict[str, tuple[Callable[..., object], list[Any]]] = {
    "rms_norm": (rms_norm, [f(3, 8), f(8), 1e-6]),
    "apply_rope": (apply_rope, [f(3, 2, 8), i(3), f(5, 4)]),
    "linear": (linear, [f(3, 8), weight(4, 8)]),
    "grouped_linear": (grouped_linear, [f(3, 2, 8), weight(4, 8), 2]),
    "hyper_mixes": (hyper_mixes, [f(3, 2, 4), f(8, 8), f(8), f(3), MIX]),
    "hyper_coefficients": (hyper_coefficients, [f(3, 8), f(8), f(3), MIX, 2]),
    "hyper_pre": (hyper_pre, [f(3, 2, 4), f(3, 2)]),
    "hyper_post": (hyper_post, [f(3, 2, 4), f(3, 4), HyperMixes(f(3, 2), f(3, 2), f(3, 2, 2))]),
    "stream_mean": (stream_mean, [f(3, 2, 4)]),
    "route": (route, [f(3, 4), f(4), 2, 1.5]),
    "experts": (run_experts, [f(3, 8), i(3, 2), f(3, 2), BANK]),
    "combine": (combine, [f(3, 8), f(3, 2, 8)]),
    "embed": (embed, [i(3), f(5, 8), F32]),
    "engram_windows": (engram_windows, [i(3, 3), i(9), 2]),
    "engram_hash": (engram_hash, [wide(3, 3), EngramHash(wide(3), wide(2, 2), wide(4))]),
    "engram_gather": (engram_gather, [wide(3, 4), EngramTable(f(9, 8)), F32]),
    "engram_inject": (
        engram_inject,
        [f(3, 2, 4), f(3, 12), f(2, 4), f(2, 4), 1e-6, torch.ones(3, dtype=torch.bool)],
    ),
    "compress_pairs": (compress_pairs, [f(3, 2, 8), f(2, 3, 2, 8), PairRows(i(2), i(2), i(2), i(2)), F32]),
    "topk_indices": (topk_indices, [f(3, 8), 2, i(3)]),
    "index_scores": (
        index_scores,
        [f(3, 2, 8), f(3, 2), IndexPages(f(2, 4, 8), None, i(1, 2), i(3)), i(3), None],
    ),
    "candidate_blocks": (candidate_blocks, [f(3, 8), i(3), 2, 2]),
    "candidate_entries": (candidate_entries, [i(3, 2), i(3), 2]),
    "sparse_attention": (sparse_attention, [f(3, 2, 8), WINDOW, ENTRIES, f(2), 0.5]),
    "gathered_attention": (gathered_attention, [f(3, 2, 8), f(6, 8), i(3, 4), f(2), 0.5]),
    "decode": (decode, [i(3, 64).byte(), i(3, 2).byte(), EntryFormat.FP8]),
    "rope_table": (rope_table, [f(2), 3]),
    "rope_rows": (rope_rows, [f(2), i(3)]),
    "philox": (philox, [wide(3), wide(3), DrawPurpose.FRESH, 2]),
    "all_finite": (all_finite, [f(3, 8)]),
    "argmax": (argmax, [f(3, 8)]),
    "log_softmax": (log_softmax, [f(3, 8)]),
    "apply_penalties": (
        apply_penalties,
        [f(1, 8), torch.tensor([0, 1]), wide(1), i(1), f(1) + 1, f(1), f(1)],
    ),
    "apply_bias": (apply_bias, [f(1, 8), torch.tensor([0, 1]), wide(1), f(1)]),
    "sample": (
        sample,
        [f(1, 8), f(1).double(), wide(1), f(1).double() + 1, f(1).double(), wide(1), wide(1)],
    ),
    "choose": (choose, [f(3, 8), PACKED, wide(3), torch.tensor([2, 0, 1])]),
    "describe_tokens": (describe_tokens, [f(3, 8), wide(3), 2]),
    "apply_bitmask": (apply_bitmask, [f(3, 8), i(2, 1), torch.tensor([0, 2])]),
}
VECTORS: dict[str, tuple[Callable[..., object], list[Any]]] = {
    "encode": (encode, [f(3, 64), EntryFormat.FP8]),
    "round_trip": (round_trip, [f(3, 64), EntryFormat.MXFP4]),
    "encode_records": (encode_records, [f(3, 64), EntryFormat.FP4]),
    "encode_records-plain": (encode_records, [f(3, 64), PLAIN]),
    "decode_records": (decode_records, [i(3, 33).byte(), EntryFormat.FP8]),
    "decode_records-plain": (decode_records, [f(3, 64), PLAIN]),
}
"""Operations on vectors of any number of leading dimensions."""
ARGUMENTS = [
    pytest.param(name, place, id=f"{name}-{place}")
    for name, (_, arguments) in CALLS.items()
    for place, argument in enumerate(arguments)
    if isinstance(argument, Tensor)
]


HOLDERS = (
    WindowKeys,
    EntryKeys,
    PairRows,
    EngramHash,
    EngramTable,
    IndexPages,
    LinearWeight,
    ExpertWeights,
    HyperMixes,
    HyperConstants,
    EntryFormat,
)
EVERYTHING = CALLS | VECTORS
CHECKED = [
    pytest.param(name, place, id=f"{name}-{place}")
    for name, (_, arguments) in EVERYTHING.items()
    for place, argument in enumerate(arguments)
    if isinstance(argument, (Tensor, *HOLDERS))
]
OPTIONAL = {("sparse_attention", 2), ("experts", 2), ("choose", 3), ("apply_bitmask", 2)}
"""Arguments that may be None; so may the scales of a plain table and of plain pages."""


@pytest.mark.parametrize("name", list(EVERYTHING))
def test_the_calls_above_are_good_ones(name: str) -> None:
    operation, arguments = EVERYTHING[name]
    operation(*arguments)


@pytest.mark.parametrize(("name", "place"), CHECKED)
def test_what_is_no_tensor_and_holds_none_is_refused_by_name(name: str, place: int) -> None:
    operation, arguments = EVERYTHING[name]
    for wrong in (None, 2.0, "x", [0.0], (1, 2), np.zeros((3, 8), np.float32)):
        if wrong is None and (name, place) in OPTIONAL:
            continue
        with pytest.raises(TypeError, match=r"(?s)^[a-z_]+ is .*; it must be of type [A-Z]\w+$"):
            operation(*arguments[:place], wrong, *arguments[place + 1 :])


@pytest.mark.parametrize(("name", "place"), CHECKED)
def test_what_is_held_and_no_tensor_is_refused_by_name(name: str, place: int) -> None:
    operation, arguments = EVERYTHING[name]
    holder = arguments[place]
    held = holder._asdict() if isinstance(holder, HyperMixes) else getattr(holder, "__dict__", {})
    for field, good in held.items():
        if isinstance(holder, HyperMixes) and field == "pre":  # of the sub-layer's input, not its output
            continue
        if not isinstance(good, Tensor | EntryFormat):
            continue
        for wrong in (None, 2.0, "x", np.zeros((3, 8), np.float32)):
            values = {**held, field: wrong}
            with pytest.raises(TypeError, match=rf"(?s){field} is .*; it must be of type [A-Z]\w+$"):
                operation(*arguments[:place], type(holder)(**values), *arguments[place + 1 :])


@pytest.mark.parametrize("name", list(VECTORS))
def test_a_number_is_no_vector(name: str) -> None:
    operation, (x, entry) = VECTORS[name]
    if entry is not PLAIN:
        with pytest.raises(ValueError, match=r"has shape \[\]; expected \[\.\.\., any\]"):
            operation(x.flatten()[0], entry)


def test_a_bank_holds_as_many_weights_of_each_kind() -> None:
    up, down = weight(4, 8), weight(8, 4)
    with pytest.raises(ValueError, match="w3 has 0 experts; w1 has 1"):
        ExpertWeights((up,), (), (down,))
    with pytest.raises(TypeError, match=r"^w2\[1\] is None; it must be of type LinearWeight$"):
        ExpertWeights((up, up), (up, up), (down, None))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"(?s)^w1 is .*; it must be of type tuple"):
        ExpertWeights([up], (up,), (down,))  # type: ignore[arg-type]


def test_the_weights_of_a_bank_have_one_form() -> None:
    up, down = weight(4, 8), weight(8, 4)
    narrow = LinearWeight.dense(up.data.bfloat16())
    for w1, w3, w2 in (
        ((up, up), (up, narrow), (down, down)),
        ((up, narrow), (up, up), (down, down)),
        ((up, up), (up, pack(up)), (down, down)),
        ((up, up), (up, up), (down, pack(down))),
    ):
        with pytest.raises(ValueError, match=r"^w\d\[1\] is \w+, .*; w1\[0\] is FLOAT32, as stored$"):
            ExpertWeights(w1, w3, w2)
        bank = _native.ExpertBank()
        bank.add(*(matrix(weights[0]) for weights in (w1, w3, w2)))
        with pytest.raises(ValueError, match="must have one format"):
            bank.add(*(matrix(weights[1]) for weights in (w1, w3, w2)))


@pytest.mark.parametrize(
    "name", ["linear", "rms_norm", "hyper_post", "experts", "sparse_attention", "argmax"]
)
def test_a_negated_view_is_refused(name: str) -> None:
    operation, (x, *arguments) = CALLS[name]
    with pytest.raises(ValueError, match="is a negated view"):
        operation(torch._neg_view(x + 0.5), *arguments)


def test_a_weight_that_is_a_negated_view_is_refused() -> None:
    with pytest.raises(ValueError, match="data is a negated view"):
        linear(f(1, 8), LinearWeight.dense(torch._neg_view(f(4, 8))))


def test_a_negated_view_is_refused_in_any_place() -> None:
    """`z.conj().imag` is one; with one element it is dense."""
    sink = torch.tensor([5 + 5j]).conj().imag
    index = torch.zeros(1, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="sink is a negated view"):
        gathered_attention(torch.ones(1, 1, 32), torch.ones(1, 32), index, sink, 0.1)
    with pytest.raises(ValueError, match="weight is a negated view"):
        rms_norm(torch.ones(1, 1), torch.tensor([1 + 1j]).conj().imag, 1e-6)


SCALARS = [
    pytest.param(name, place, id=f"{name}-{place}")
    for name, (_, arguments) in CALLS.items()
    for place, argument in enumerate(arguments)
    if isinstance(argument, int | float)
]


@pytest.mark.parametrize(("name", "place"), SCALARS)
def test_what_is_no_number_is_refused_by_name(name: str, place: int) -> None:
    operation, arguments = CALLS[name]
    argument = list(inspect.signature(operation).parameters)[place]
    for wrong in (None, "x", [1.0]):
        with pytest.raises(TypeError, match=rf"(?s)^{argument} is .*; it must be "):
            operation(*arguments[:place], wrong, *arguments[place + 1 :])


def test_whether_an_input_is_quantized_is_true_or_false() -> None:
    for wrong in (1, None, "no"):
        with pytest.raises(TypeError, match=r"quantize_input is .*; it must be of type bool"):
            linear(f(3, 32), weight(4, 32), quantize_input=wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"quantize_input is .*; it must be of type bool"):
            experts(f(3, 8), i(3, 2), None, BANK, 10.0, quantize_input=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("groups", [0, -1])
def test_the_number_of_groups_is_positive(groups: int) -> None:
    with pytest.raises(ValueError, match=f"groups is {groups}; it must be at least 1"):
        grouped_linear(f(3, 2, 8), weight(4, 8), groups)


@pytest.mark.parametrize(("name", "place"), ARGUMENTS)
def test_a_wrong_rank_or_element_type_is_refused(name: str, place: int) -> None:
    operation, arguments = CALLS[name]
    before, good, after = arguments[:place], arguments[place], arguments[place + 1 :]
    for wrong in (good[0], good[None], good.flatten()[0]):
        with pytest.raises(ValueError):
            operation(*before, wrong, *after)
    with pytest.raises(TypeError):
        operation(*before, good.half(), *after)
