"""Logits, greedy tokens, candidates, decoding and drafts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from di_model.golden.files import CaseResult, GoldenFile, largest_difference, never_silent
from di_model.golden.runners import DecodeResult, Runner
from di_model.trace import Trace, Traced

TOLERANCE = 2e-4
"""Largest allowed difference in float32 numerics."""
LOWPREC_RMS = 0.35
"""Largest allowed relative RMS of quantized logits end to end: it catches gross errors only."""


@never_silent
def check_logits(path: str | Path, runner: Runner, *, cuts: bool = True) -> Iterator[CaseResult]:
    """Cases of ``{preset}_fp32_logits.npz``; ``runner`` in float32 numerics. Without ``cuts``, whole prompts only."""
    file = GoldenFile(path)
    for prompt in file.cases("ids"):
        ids, trace = file[f"{prompt}.ids"], Trace()
        output = runner.forward(ids, trace)
        rows = _rows(file, (prompt,), len(ids))
        expected = file[f"{prompt}.logits"]
        yield file.within(f"{prompt} logits", output.logits[rows], expected, TOLERANCE)
        yield file.equal(f"{prompt} greedy tokens", output.logits[rows].argmax(1), expected.argmax(1))
        if f"{prompt}.main_hidden_last" in file and output.features is not None:
            last = file[f"{prompt}.main_hidden_last"]
            yield file.within(f"{prompt} draft features", output.features[-1], last, TOLERANCE)
        if f"{prompt}.candidates" in file:
            yield _candidates(file, prompt, runner, trace, rows)
        if cuts and f"{prompt}.prefill_lengths" in file:
            lengths = file[f"{prompt}.prefill_lengths"].tolist()
            logits = runner.cut_logits(ids, lengths)
            expected = file[f"{prompt}.prefill_last_logits"]
            yield file.within(f"{prompt} cut to {len(lengths)} lengths", logits, expected, TOLERANCE)
    yield from file.leftovers(*(() if cuts else ("prefill_lengths", "prefill_last_logits")))


def _rows(file: GoldenFile, prefixes: tuple[str, ...], length: int) -> Tensor:
    """Positions that the file holds: ``rows`` of the case or of the file, by default all of them."""
    for key in (*(f"{prefix}.rows" for prefix in prefixes), "rows"):
        if key in file:
            return file[key].long()
    return torch.arange(length)


def _candidates(file: GoldenFile, prompt: str, runner: Runner, trace: Trace, rows: Tensor) -> CaseResult:
    """Visible positions in the candidate blocks of each query equal the golden bits."""
    text, length = runner.config.text, len(file[f"{prompt}.ids"])
    source = text.candidate_source_layer_id
    case = f"{prompt} candidates"
    if source is None:
        return CaseResult(file.name, case, "the configuration has no candidate source", False)
    packed = file[f"{prompt}.candidates"]
    queries = torch.arange(length) if len(packed) == length else rows
    expected = torch.from_numpy(np.unpackbits(packed.numpy(), axis=1)).bool()
    blocks = trace.get(Traced.CANDIDATES, source)[queries]
    position = torch.arange(expected.shape[1])
    kept = _in_blocks(blocks, position // text.candidate_block_size)
    visible = position < ((queries + 1) // text.layers[source].ratio)[:, None]
    return file.equal(case, kept & visible, expected & visible)


def _in_blocks(blocks: Tensor, block: Tensor) -> Tensor:
    """Whether each row's ``blocks [rows, n]`` (-1: none) hold ``block [positions]``: bool ``[rows, positions]``."""
    # One column more takes what is no block.
    count = max(int(blocks.max()), int(block.max())) + 1
    held = torch.zeros((len(blocks), count + 1), dtype=torch.bool)
    held.scatter_(1, torch.where(blocks < 0, count, blocks).long(), True)
    return held[:, block]


@never_silent
def check_decode(path: str | Path, runner: Runner) -> Iterator[CaseResult]:
    """Cases of ``{preset}_fp32_decode.npz``; ``runner`` in float32 numerics."""
    file = GoldenFile(path)
    for prompt in file.cases("prompt"):
        greedy = file[f"{prompt}.greedy"]
        blocks = f"{prompt}.draft_tokens"
        length = file[blocks].shape[1] - 1 if blocks in file else runner.config.text.dspark_block_size
        result = runner.decode(file[f"{prompt}.prompt"], greedy, length)
        name = f"prompt of {prompt}"
        yield file.within(f"{name} logits", result.logits, file[f"{prompt}.logits"], TOLERANCE)
        yield file.equal(f"{name} greedy tokens", result.logits.argmax(1), greedy)
        if blocks in file:
            yield from _drafts(file, prompt, greedy, result)
    yield from file.leftovers()


def _drafts(file: GoldenFile, prompt: str, greedy: Tensor, result: DecodeResult) -> Iterator[CaseResult]:
    """Golden block ``j`` is ``greedy[j+1]`` and the tokens drafted behind it."""
    name = f"prompt of {prompt}"
    expected = file[f"{prompt}.draft_tokens"]
    count = len(expected)
    drafted = torch.stack([draft.tokens for draft in result.drafts[:count]])
    blocks = torch.cat([greedy[1 : count + 1, None], drafted], dim=1)
    yield file.equal(f"{name} draft tokens", blocks, expected)
    if f"{prompt}.draft_logits_first4" in file:
        first = file[f"{prompt}.draft_logits_first4"]
        logits = torch.stack([draft.logits for draft in result.drafts[: len(first)]])
        yield file.within(f"{name} draft logits", logits, first, TOLERANCE)
    if f"{prompt}.draft_confidence" in file:
        confidence = torch.stack([draft.confidence for draft in result.drafts[:count]])
        yield file.within(
            f"{name} draft confidence", confidence, file[f"{prompt}.draft_confidence"], TOLERANCE
        )


@never_silent
def check_lowprec(path: str | Path, quantized: Runner | None, plain: Runner | None) -> Iterator[CaseResult]:
    """Cases of ``{preset}_lowprec_logits.npz``, end to end.

    Args:
        path: the golden file.
        quantized: the preset in release numerics, for the ``quant.`` cases; None leaves them out.
        plain: the unquantized preset in release numerics, for the ``bf16.`` cases; None leaves them out.
    """
    file = GoldenFile(path)
    for kind, runner in (("quant", quantized), ("bf16", plain)):
        for key in file.keys:
            parts = key.split(".")
            if runner is None or len(parts) != 3 or parts[0] != kind or not parts[2].startswith("logits"):
                continue
            prompt = f"{kind}.{parts[1]}"
            ids, expected = file[f"{parts[1]}.ids"], file[key]
            every = parts[2].removeprefix("logits_every")
            rows = (
                torch.arange(0, len(ids), int(every))
                if every.isdigit()
                else _rows(file, (prompt, parts[1]), len(ids))
            )
            yield _relative_rms(file, f"{kind} {parts[1]}", runner.forward(ids).logits[rows], expected)
    if quantized is not None and plain is not None:
        yield from file.leftovers("self_diff", "self_diff_lengths")  # how far the release is from itself


def _relative_rms(file: GoldenFile, case: str, actual: Tensor, expected: Tensor) -> CaseResult:
    if actual.shape != expected.shape:
        return file.shapes_differ(case, actual, expected)
    error = float((actual - expected).square().mean().sqrt() / expected.square().mean().sqrt())
    worst = largest_difference(actual, expected)
    figure = f"relative RMS {error:.3f} (at most {LOWPREC_RMS:g}), max error {worst:.2f}"
    return CaseResult(file.name, case, figure, error <= LOWPREC_RMS)
