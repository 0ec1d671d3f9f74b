"""Values inside the layers: one case a layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from di_model.config import TextConfig
from di_model.golden.files import CaseResult, GoldenFile, largest_difference, never_silent
from di_model.golden.logits import TOLERANCE
from di_model.golden.runners import LayerInputs, LayerRunner, Runner
from di_model.trace import Trace, Traced

CHOICES = (Traced.ENGRAM_IDS, Traced.MOE_EXPERT, Traced.TOPK)
"""Whole numbers that must be equal."""
VALUES = (
    Traced.ENGRAM_OUT,
    Traced.ATTN_IN,
    Traced.COMPRESSED_KV,
    Traced.INDEX_K,
    Traced.ATTN_OUT,
    Traced.FFN_IN,
    Traced.MOE_WEIGHT,
    Traced.FFN_OUT,
    Traced.OUT_STREAM,
    Traced.OUT_MIX,
)
FLOAT32_INPUTS = (Traced.ENGRAM_IN, Traced.IN_STREAM, Traced.IN_MIX)
"""Compared too where nothing starts from them."""
FLOAT32_VALUES = (Traced.MOE_WEIGHT, Traced.OUT_MIX)
"""Never rounded to bfloat16, so the order of a sum shows in their last bits."""
FLOAT32_TOLERANCE = 1e-5
MIN_EQUAL_ROWS = 0.9
BAR_WIDTH = 64
"""Hidden size that the bar on rows was set at. One value on the other side of a rounding spoils its whole row, so a row
of ``n`` times as many values is held to the ``n``-th power of the bar."""
MIN_EQUAL_ENTRIES = 0.99
"""Of the compressed KV, which follows from the golden input through few sums: entirely, unless there are hundreds."""
MAX_MEDIAN_ERROR = 1e-3


@never_silent
def check_layers(path: str | Path, runner: Runner) -> Iterator[CaseResult]:
    """Cases of ``{preset}_fp32_layers.npz``: one forward pass, ``runner`` in float32 numerics."""
    file, trace = GoldenFile(path), Trace()
    output = runner.forward(file["ids"], trace)
    for layer in _layers(file, (*FLOAT32_INPUTS, *VALUES, *CHOICES)):
        yield _float32_layer(file, trace, layer, runner.config.text)
    if "logits_last" in file:
        yield file.within("last logits", output.logits[-1], file["logits_last"], TOLERANCE)
    if "main_hidden_last" in file and output.features is not None:
        yield file.within("last draft features", output.features[-1], file["main_hidden_last"], TOLERANCE)
    yield from file.leftovers()


def _layers(file: GoldenFile, names: Iterable[Traced]) -> list[int]:
    """Layers of which the file holds any of the arrays, ascending."""
    return sorted({layer for name in names for layer in file.layers(name)})


def _expected(file: GoldenFile, name: Traced, layer: int, text: TextConfig) -> Tensor:
    """A golden array. The release's selections are no wider than the entries there are: the rest is filled with -1."""
    value = file[f"{name}.{layer}"]
    if name is not Traced.TOPK:
        return value
    return functional.pad(value, (0, max(0, text.index_topk - value.shape[1])), value=-1)


def _float32_layer(file: GoldenFile, trace: Trace, layer: int, text: TextConfig) -> CaseResult:
    compared = [name for name in (*FLOAT32_INPUTS, *VALUES, *CHOICES) if f"{name}.{layer}" in file]
    faults, worst = [], 0.0
    for name in compared:
        actual, expected = trace.get(name, layer), _expected(file, name, layer, text)
        if actual.shape != expected.shape:
            faults.append(f"{name} has shape {list(actual.shape)} instead of {list(expected.shape)}")
        elif name in CHOICES:
            unequal = int((actual != expected).any(dim=1).sum())
            faults += [f"{name} differs in {unequal} rows"] if unequal else []
        else:
            error = largest_difference(actual, expected)
            worst = max(worst, error)
            faults += [] if error <= TOLERANCE else [f"{name} is off by {error:.2e}"]
    figure = f"{len(compared)} arrays, max error {worst:.2e} (at most {TOLERANCE:g})"
    return CaseResult(file.name, f"layer {layer}", "; ".join([figure, *faults]), not faults)


@never_silent
def check_quantized_layers(
    path: str | Path, runner: LayerRunner, judge: LayerRunner | None = None
) -> Iterator[CaseResult]:
    """Cases of ``{preset}_quant_layers.npz``: each layer from the golden input, in release numerics.

    Over 90 % of the rows of every array equal bit for bit (fewer where they are wide, see BAR_WIDTH), over 99 % of the
    compressed KV, all n-gram rows, and a median error of at most 1e-3. Where a selection differs, it must be as good:
    exact ties of scores were broken arbitrarily.

    Args:
        path: the golden file.
        runner: what is checked.
        judge: records the scores that decide which selections are as good; ``runner`` when None.
    """
    file = GoldenFile(path)
    text = runner.config.text
    inputs = _inputs(file, text)
    trace = runner.run_layers(inputs)
    scores = trace if judge is None else judge.run_layers(inputs)
    for layer in _layers(file, (*CHOICES, *VALUES)):
        yield _quantized_layer(file, trace, scores, layer, text)
    yield from file.leftovers("logits_last", "main_hidden_last")  # of the whole pass, not of a layer


def _inputs(file: GoldenFile, text: TextConfig) -> LayerInputs:
    def arrays(name: Traced) -> dict[int, Tensor]:
        return {layer: file[f"{name}.{layer}"] for layer in file.layers(name)}

    selections = {
        layer: _expected(file, Traced.TOPK, layer, text).to(torch.int32) for layer in file.layers(Traced.TOPK)
    }
    topk = {
        role.index: selections[role.index_source]
        for role in text.layers
        if role.index_source is not None and role.index_source in selections
    }
    # Where an input is not stored, it is what the layer before left, unless an Engram changed it.
    left = {layer + 1: stream for layer, stream in arrays(Traced.OUT_STREAM).items()}
    left = {
        role.index: left[role.index] for role in text.layers if role.index in left and role.engram is None
    }
    in_stream = left | arrays(Traced.ENGRAM_OUT) | arrays(Traced.IN_STREAM)
    in_mix = {layer + 1: mix for layer, mix in arrays(Traced.OUT_MIX).items()} | arrays(Traced.IN_MIX)
    return LayerInputs(
        file["ids"],
        arrays(Traced.ENGRAM_IN),
        {layer: stream for layer, stream in in_stream.items() if layer in in_mix},
        in_mix,
        topk,
    )


def _min_equal_rows(name: Traced, text: TextConfig) -> float:
    """Share of equal rows that an array must have more of, or reach where it is 1."""
    if name is Traced.ENGRAM_IDS:
        return 1.0
    if name is Traced.COMPRESSED_KV:
        return MIN_EQUAL_ENTRIES
    return float(MIN_EQUAL_ROWS ** (1 if name in CHOICES else max(1.0, text.hidden_size / BAR_WIDTH)))


def _quantized_layer(
    file: GoldenFile, trace: Trace, judge: Trace, layer: int, text: TextConfig
) -> CaseResult:
    figures, passed = [], True
    for name in (*CHOICES, *VALUES):
        if f"{name}.{layer}" not in file:
            continue
        actual, expected = trace.get(name, layer), _expected(file, name, layer, text)
        if actual.shape != expected.shape:
            figures.append(f"{name} has shape {list(actual.shape)} instead of {list(expected.shape)}")
            passed = False
            continue
        error = (actual.to(torch.float64) - expected.to(torch.float64)).abs().flatten(1)
        equal_rows = error.amax(dim=1) <= (FLOAT32_TOLERANCE if name in FLOAT32_VALUES else 0.0)
        if name is Traced.TOPK and not bool(equal_rows.all()):
            equal_rows = equal_rows | _as_good(judge, layer, actual, expected.long())
        share, median = float(equal_rows.double().mean()), float(error.median())
        bar = _min_equal_rows(name, text)
        passed &= (share > bar or share == bar == 1.0) and median <= MAX_MEDIAN_ERROR
        figures.append(f"{name} {100 * share:.4g} %")
    return CaseResult(file.name, f"layer {layer}", "equal rows: " + ", ".join(figures), passed)


def _as_good(judge: Trace, layer: int, actual: Tensor, expected: Tensor) -> Tensor:
    """Rows whose golden selection has the same scores as ours, so that it is another valid choice: bool ``[rows]``."""
    if (Traced.INDEX_SCORES, layer) not in judge:
        return torch.zeros(len(actual), dtype=torch.bool)
    scores = judge.get(Traced.INDEX_SCORES, layer)

    def chosen(selection: Tensor) -> Tensor:
        found = scores.gather(1, selection.long().clamp(min=0))
        return torch.where(selection >= 0, found, -torch.inf).sort(dim=1).values

    distinct = torch.tensor([len(set(row)) == len(row) for row in _without_fill(expected)])
    return distinct & (chosen(actual) == chosen(expected)).all(dim=1)


def _without_fill(selection: Tensor) -> list[list[int]]:
    return [[entry for entry in row if entry >= 0] for row in selection.tolist()]
