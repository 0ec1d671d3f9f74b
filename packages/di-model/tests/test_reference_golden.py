"""The reference model and the reference operations against the golden values of the released code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from di_model.checkpoint import load_checkpoint
from di_model.engram_tables import derive_engram
from di_model.golden import (
    CaseResult,
    ReferenceRunner,
    check_decode,
    check_engram,
    check_layers,
    check_logits,
    check_lowprec,
    check_operations,
    check_quantized_layers,
    check_tokenizer,
    reference_operations,
)
from di_model.golden.files import GoldenFile
from di_model.numerics import Numerics
from di_model.reference import ReferenceModel


@pytest.fixture(scope="module")
def golden(shared: Path) -> Path:
    return shared / "golden"


@pytest.fixture(scope="module")
def runner(make_tiny: Callable[..., Path]) -> Callable[..., ReferenceRunner]:
    """The reference model of a preset: ``runner("micro", Numerics.FLOAT32)``; checkpoints are written once."""
    directories: dict[tuple[str, ...], Path] = {}

    def build(preset: str, numerics: Numerics, *options: str) -> ReferenceRunner:
        key = (preset, *options)
        if key not in directories:
            directories[key] = make_tiny(preset, *options)
        checkpoint = load_checkpoint(directories[key])
        engram = derive_engram(checkpoint.config, directories[key])
        return ReferenceRunner(ReferenceModel(checkpoint.config, checkpoint.weights, engram, numerics))

    return build


def assert_all(results: Iterable[CaseResult], *, at_least: int) -> None:
    """Every case met its criterion, and there were enough of them to mean something."""
    results = list(results)
    missed = [f"{result.case}: {result.figure}" for result in results if not result.passed]
    assert not missed, "\n".join(missed)
    assert len(results) >= at_least


@pytest.mark.parametrize("preset", ["micro", "w128"])
def test_float32_logits_tokens_features_candidates_and_cut_prompts(
    preset: str, golden: Path, runner: Callable[..., ReferenceRunner]
) -> None:
    results = check_logits(golden / f"{preset}_fp32_logits.npz", runner(preset, Numerics.FLOAT32))
    assert_all(results, at_least=15)


def test_float32_decode_and_drafts(golden: Path, runner: Callable[..., ReferenceRunner]) -> None:
    results = check_decode(golden / "micro_fp32_decode.npz", runner("micro", Numerics.FLOAT32))
    assert_all(results, at_least=25)


def test_float32_values_inside_the_layers(golden: Path, runner: Callable[..., ReferenceRunner]) -> None:
    results = check_layers(golden / "micro_fp32_layers.npz", runner("micro", Numerics.FLOAT32))
    assert_all(results, at_least=10)


def test_quantized_layers_bit_for_bit(golden: Path, runner: Callable[..., ReferenceRunner]) -> None:
    results = check_quantized_layers(golden / "micro_quant_layers.npz", runner("micro", Numerics.RELEASE))
    assert_all(results, at_least=8)


def test_low_precision_end_to_end(golden: Path, runner: Callable[..., ReferenceRunner]) -> None:
    quantized = runner("micro", Numerics.RELEASE)
    plain = runner("micro", Numerics.RELEASE, "--unquantized")
    assert_all(check_lowprec(golden / "micro_lowprec_logits.npz", quantized, plain), at_least=4)


def test_unquantized_checkpoint_gives_the_same_float32_logits(
    golden: Path, runner: Callable[..., ReferenceRunner]
) -> None:
    ids = GoldenFile(golden / "micro_fp32_logits.npz")["text.ids"]
    quantized = runner("micro", Numerics.FLOAT32).forward(ids)
    plain = runner("micro", Numerics.FLOAT32, "--unquantized").forward(ids)
    assert torch.equal(quantized.logits, plain.logits)


def test_reference_operations(golden: Path) -> None:
    assert_all(check_operations(golden / "ops.npz", reference_operations()), at_least=24)


def test_released_engram_constants_and_hashes(golden: Path, released_tokenizer: Path) -> None:
    assert_all(check_engram(golden / "engram_released.npz", released_tokenizer), at_least=11)


def test_released_tokenizer(golden: Path, released_tokenizer: Path) -> None:
    assert_all(check_tokenizer(golden / "tokenizer_cases.json", released_tokenizer), at_least=3)
