"""Tuples that the native functions take: a wrong size or kind of item is an error that names it, never a crash."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from di_kernels import _native, set_instruction_set
from di_kernels.ops.linear import LinearWeight, linear
from di_kernels.ops.sampling import SamplingParametersError, pack_parameters
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

Q, OUT, SINK = torch.ones(3, 2, 8), torch.empty(3, 2, 8), torch.zeros(2)


def i(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


WINDOW = (torch.zeros(2, 5, 8), torch.zeros(3, 8), "float32", i(3), i(3), i(3), i(3), i(3) + 1, 4)
ENTRIES = (torch.zeros(2, 4, 8), "float32", i(1, 2), i(3), i(3, 2))
PAGES = (torch.zeros(2, 4, 8), None, i(1, 2), i(3))
MXFP4_PAGES = (i(2, 4, 16).byte(), i(2, 4, 1).byte(), i(1, 2), i(3))
UP, DOWN = (0, 0, torch.zeros(4, 8), None, 4, 8), (0, 0, torch.zeros(8, 4), None, 8, 4)
FP8 = (2, 0, i(32, 32).byte(), i(1, 1).byte(), 32, 32)
PACKED = (3, 1, i(2, 320).byte(), None, 32, 32)


def run_window(window: Any) -> None:
    _native.sparse_attention(Q, window, ENTRIES, SINK, 0.5, OUT)


def run_entries(entries: Any) -> None:
    _native.sparse_attention(Q, WINDOW, entries, SINK, 0.5, OUT)


def run_float32_pages(pages: Any) -> None:
    _native.index_scores(Q, torch.ones(3, 2), pages, i(3) + 4, None, torch.empty(3, 4))


def run_mxfp4_pages(pages: Any) -> None:
    q = torch.ones(3, 2, 32)
    _native.index_scores(q, torch.ones(3, 2), pages, i(3) + 4, None, torch.empty(3, 4))


def run_w1(weight: Any) -> None:
    _native.ExpertBank().add(weight, UP, DOWN)


def run_w3(weight: Any) -> None:
    _native.ExpertBank().add(UP, weight, DOWN)


def run_w2(weight: Any) -> None:
    _native.ExpertBank().add(UP, UP, weight)


def run_fp8(weight: Any) -> None:
    _native.ExpertBank().add(weight, FP8, FP8)


def run_packed(weight: Any) -> None:
    _native.ExpertBank().add(weight, PACKED, PACKED)


NAMES = {
    "window": ("ring", "fresh", "format", "slot", "split", "fresh_start", "begin", "end", "width"),
    "entries": ("pages", "format", "block_table", "sequence", "selected"),
    "pages": ("values", "scales", "block_table", "sequence"),
    "weight": ("format", "packed", "data", "scale", "rows", "columns"),
}
TUPLES: list[tuple[Callable[[Any], None], str, tuple[Any, ...], tuple[str, ...]]] = [
    (run_window, "window", WINDOW, NAMES["window"]),
    (run_entries, "entries", ENTRIES, NAMES["entries"]),
    (run_float32_pages, "pages", PAGES, NAMES["pages"]),
    (run_mxfp4_pages, "pages", MXFP4_PAGES, NAMES["pages"]),
    (run_w1, "w1", UP, NAMES["weight"]),
    (run_w3, "w3", UP, NAMES["weight"]),
    (run_w2, "w2", DOWN, NAMES["weight"]),
    (run_fp8, "w1", FP8, NAMES["weight"]),
    (run_packed, "w1", PACKED, NAMES["weight"]),
]
EVERY_TUPLE = pytest.mark.parametrize(("run", "argument", "good", "names"), TUPLES)


@EVERY_TUPLE
def test_the_tuples_below_are_good_ones(run, argument, good, names) -> None:
    assert len(good) == len(names)
    run(good)


@EVERY_TUPLE
def test_a_wrong_number_of_items_is_refused(run, argument, good, names) -> None:
    for wrong in ((), good[:-1], (*good, None)):
        with pytest.raises(
            ValueError, match=f"^{argument} has {len(wrong)} items; expected {' '.join(names)}$"
        ):
            run(wrong)


@EVERY_TUPLE
def test_an_item_of_a_wrong_kind_is_refused_by_name(run, argument, good, names) -> None:
    for place, (item, name) in enumerate(zip(good, names, strict=True)):
        for wrong in (None, 7, 1.5, "fp8", object(), Tensor, [item], (item,)):
            if type(wrong) is type(item) or (wrong is None and name in ("scale", "scales")):
                continue
            with pytest.raises(
                TypeError,
                match=rf"^{argument}\.{name} must be (a tensor|an integer|UTF-8 text), not {type(wrong).__name__}",
            ):
                run((*good[:place], wrong, *good[place + 1 :]))


@EVERY_TUPLE
def test_what_is_no_tuple_is_refused(run, argument, good, names) -> None:
    for wrong in (list(good), dict.fromkeys(names), good[0], 7, "ring"):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            run(wrong)


@pytest.mark.parametrize("width", [-1, 2**31, 2**63, -(2**200)])
def test_the_width_of_the_window_is_bounded(width: int) -> None:
    with pytest.raises(ValueError, match=rf"^window\.width is {width}; allowed: 0 to 2147483647$"):
        run_window((*WINDOW[:-1], width))


@pytest.mark.parametrize("number", [-1, 4, 2**40, 2**70])
def test_the_format_of_a_weight_is_bounded(number: int) -> None:
    with pytest.raises(ValueError, match=rf"^w1\.format is {number}; allowed: 0 to 3$"):
        run_w1((number, *UP[1:]))


def test_the_shape_of_a_weight_is_that_of_its_data() -> None:
    for wrong in ((*UP[:4], 5, 8), (*UP[:4], 4, 7)):
        with pytest.raises(ValueError, match="weight data does not have this shape"):
            run_w1(wrong)
    for wrong in ((*PACKED[:4], 33, 32), (*PACKED[:4], 32, 64), (2, *PACKED[1:])):
        with pytest.raises(ValueError, match="packed weight data has shape"):
            run_w1(wrong)
    with pytest.raises(TypeError, match="weight data must have dtype uint8"):
        run_w1((*PACKED[:2], torch.zeros(2, 320), *PACKED[3:]))


def test_an_unknown_entry_format_is_refused() -> None:
    with pytest.raises(ValueError, match="entry format is fp16; allowed: fp8, fp4, mxfp4, float32"):
        run_window((*WINDOW[:2], "fp16", *WINDOW[3:]))
    with pytest.raises(TypeError, match=r"^window\.format must be UTF-8 text, not str$"):
        run_window((*WINDOW[:2], "\ud800", *WINDOW[3:]))


@pytest.mark.parametrize("count", [0, -1, 4097, 2**31 - 1])
def test_the_number_of_threads_is_bounded(count: int) -> None:
    with pytest.raises(ValueError, match="count must be 1 to MAX_THREADS"):
        _native.set_num_threads(count, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0),
        ("temperature", math.inf),
        ("temperature", math.nan),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", math.nan),
        ("min_p", -1.0),
        ("min_p", 1.5),
        ("min_p", math.nan),
    ],
)
def test_parameters_that_leave_nothing_to_draw_are_refused(name: str, value: float) -> None:
    values = {"temperature": 1.0, "top_p": 0.5, "min_p": 0.1} | {name: value}
    given = {field: torch.tensor([number], dtype=torch.float64) for field, number in values.items()}
    zero = torch.zeros(1, dtype=torch.int64)
    packed = pack_parameters(**given, top_k=zero, seeds=zero)
    with pytest.raises(SamplingParametersError, match=f"^{name} of row 0 is {value:f}; allowed: "):
        _native.choose(torch.zeros(1, 4), packed, zero, None, zero.clone(), zero == 1)


def test_blocks_larger_than_any_row_do_not_overflow() -> None:
    best = i(1, 2)
    _native.candidate_blocks(torch.zeros(1, 8), i(1) + 8, 2**63 - 1, best)
    assert best.tolist() == [[0, -1]]


def test_a_tensor_without_memory_is_refused() -> None:
    """As functional and fake tensors are, and those whose storage was let go."""
    gone = torch.zeros(4, 8)
    gone.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="x has no memory"):
        linear(gone, LinearWeight.dense(torch.zeros(2, 8)))
    with FakeTensorMode():
        fake = torch.empty(4, 8)
    with pytest.raises(ValueError, match="x has no memory"):
        linear(fake, LinearWeight.dense(torch.zeros(2, 8)))


def test_the_name_of_an_instruction_set_is_read_whole() -> None:
    with pytest.raises(ValueError, match="instruction set is 'portable"):
        set_instruction_set("portable\0more")
