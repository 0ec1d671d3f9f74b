"""Every argument of every operation that is a tensor or holds some: whatever is no such tensor is refused by name.

A wrong rank or element type is never broadcast or converted.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from di_kernels import _native
from di_kernels.cpu.arrays import empty
from di_kernels.cpu.linear import matrix
from di_kernels.ops.attention import EntryKeys, WindowKeys, gathered_attention
from di_kernels.ops.cache import KeyPages, KeyTransform, key_records
from di_kernels.ops.compress import PairRows
from di_kernels.ops.engram import EngramHash, EngramTable, engram_hash
from di_kernels.ops.formats import EntryFormat
from di_kernels.ops.hyper import HyperConstants, HyperEntryWeights, HyperMixes, hyper_enter
from di_kernels.ops.indexer import IndexPages
from di_kernels.ops.linear import LinearWeight, grouped_linear, linear
from di_kernels.ops.moe import ExpertWeights, experts
from di_kernels.ops.norm import rms_norm
from di_kernels.ops.rope import apply_rope, rope_frequencies
from di_kernels.packing import pack
from di_kernels.plan import step_rows
from torch import Tensor

from .calls import BANK, CALLS, EVERYTHING, F32, MIX, PLAIN, VECTORS, f, i, weight, wide

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
    HyperEntryWeights,
    KeyTransform,
    KeyPages,
    EntryFormat,
)
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
    with pytest.raises(ValueError, match="w3 has 1 experts; w1 has 0"):
        ExpertWeights((), (up,), ())
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


REAL_PLACES = [("rms_norm", 2), ("route", 3), ("sparse_attention", 4), ("gathered_attention", 4)]


@pytest.mark.parametrize(("name", "place"), REAL_PLACES)
def test_a_number_is_one_and_no_larger_than_a_float(name: str, place: int) -> None:
    operation, arguments = CALLS[name]
    argument = list(inspect.signature(operation).parameters)[place]

    def run(number: object) -> None:
        operation(*arguments[:place], number, *arguments[place + 1 :])

    for good in (1, np.float32(0.5), np.int64(1), torch.tensor(0.5)):
        run(good)
    with pytest.raises(ValueError, match=rf"^{argument} is 1000.*; it must be in the range of a float$"):
        run(10**400)
    wrongs = [torch.ones(2), np.ones(2), 1j, "x", None, object()]
    if name != "sparse_attention":  # which looks at what the kernel refuses only
        wrongs.append(True)
    for wrong in wrongs:
        with pytest.raises(TypeError, match=rf"(?s)^{argument} is .*; it must be a number$"):
            run(wrong)


@pytest.mark.parametrize("name", ["rms_norm", "rms_norm_quantized", "engram_inject"])
def test_what_is_added_to_a_mean_square_is_not_negative(name: str) -> None:
    operation, arguments = CALLS[name]
    place = next(place for place, argument in enumerate(arguments) if isinstance(argument, float))
    for wrong in (float("nan"), -1, -1e-30, float("inf"), 1e300, torch.tensor(-1.0)):
        with pytest.raises(ValueError, match=r"^eps is .*; allowed: 0 to 3\.4028\d*e\+38$"):
            operation(*arguments[:place], wrong, *arguments[place + 1 :])


def test_the_constant_of_a_transform_is_checked() -> None:
    def run(eps: Any) -> Tensor:
        return key_records(f(3, 8), i(3), KeyTransform(f(8), eps, f(5, 4)), PLAIN)

    for kind in (None, "x", torch.ones(2)):
        with pytest.raises(TypeError, match=r"(?s)^transform\.eps is .*; it must be a number$"):
            run(kind)
    for value in (10**400, float("nan"), -1.0):
        with pytest.raises(
            ValueError, match=r"^transform\.eps is .*; (allowed: 0 to|it must be in the range)"
        ):
            run(value)


COUNTS = [
    ("topk_indices", 1),
    ("select_entries", 4),
    ("philox", 3),
    ("candidate_blocks", 2),
    ("candidate_blocks", 3),
    ("candidate_entries", 2),
    ("route", 2),
    ("describe_tokens", 2),
    ("grouped_linear", 2),
    ("hyper_coefficients", 4),
    ("rope_table", 1),
    ("engram_windows", 2),
]


@pytest.mark.parametrize(("name", "place"), COUNTS)
def test_a_count_is_an_integer_of_moderate_size(name: str, place: int) -> None:
    """Nothing is allocated for a larger one."""
    operation, arguments = CALLS[name]
    argument = list(inspect.signature(operation).parameters)[place]
    unbounded = {("candidate_blocks", 2): 2**63, ("engram_windows", 2): 2**63}  # sizes nothing
    for large in (2**40, 2**62, 2**63, 2**70, 10**400):
        if large < unbounded.get((name, place), 0):
            continue
        with pytest.raises(ValueError, match=rf"^{argument} is \d+.*; (it must be|allowed: )"):
            operation(*arguments[:place], large, *arguments[place + 1 :])
    for wrong in (True, torch.ones(2), 1.0, "x", None):
        with pytest.raises(TypeError, match=rf"(?s)^{argument} is .*; it must be (an integer|of type int)$"):
            operation(*arguments[:place], wrong, *arguments[place + 1 :])


def test_rotary_dimensions_are_of_moderate_number() -> None:
    for dim in (2**40, 2**62, 2**70):
        with pytest.raises(ValueError, match=r"^dim is \d+; it must be at most 1048576$"):
            rope_frequencies(dim, 10_000.0)


def test_a_result_that_no_memory_holds_is_refused() -> None:
    with pytest.raises(
        MemoryError, match=r"^a result \[1099511627776, 1073741824\] of torch.float32 is more"
    ):
        empty(2**40, 2**30, dtype=F32)


def test_true_or_false_is_asked_for() -> None:
    weights = HyperEntryWeights(f(8, 8), f(8), f(3), f(4))
    for wrong in (1, 2, None, "x"):
        with pytest.raises(TypeError, match=r"^inverse is .*; it must be of type bool$"):
            apply_rope(f(3, 2, 8), i(3), f(5, 4), inverse=wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"^quantize is .*; it must be of type bool$"):
            hyper_enter(f(3, 2, 4), f(3, 2), weights, MIX, quantize=wrong)  # type: ignore[arg-type]


def test_the_constants_of_a_hash_fit_each_other() -> None:
    for primes, offsets, message in (
        (wide(2, 2), wide(4)[0], r"constants\.offsets has shape \[\]; expected \[4\]"),
        (wide(2, 2), wide(3), r"constants\.offsets has shape \[3\]; expected \[4\]"),
        (wide(1, 2), wide(2), r"constants\.primes has shape \[1, 2\]; expected \[2, any\]"),
    ):
        with pytest.raises(ValueError, match=message):
            engram_hash(wide(3, 3), EngramHash(wide(3), primes, offsets))


def test_the_sizes_of_a_step_are_checked() -> None:
    arrays = {name: i(1) for name in ("tokens", "q_start", "q_len", "slots")}
    arrays |= {"block_table": i(1, 1), "context": i(1, 1)}
    for error, sizes, message in (
        (TypeError, ("a",) * 6, r"^block_size of sizes is 'a'; it must be an integer$"),
        (TypeError, [1] * 6, r"^sizes is \[1.*; it must be of type tuple$"),
        (ValueError, (1,) * 5, r"^sizes is \(1.*; it must hold block_size, blocks, slots, window, "),
        (ValueError, (1, 1, 0, 1, 1, 1), r"^slots of sizes is 0; allowed: 1 to"),
        (ValueError, (1, 1, 1, 1, 2**63, 1), r"^window_cells of sizes is 9223372036854775808; allowed: 1 to"),
    ):
        with pytest.raises(error, match=message):
            step_rows(sizes, **arrays)  # type: ignore[arg-type]


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
