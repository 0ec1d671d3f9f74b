"""The shipped nano: within its size, equal bits under every schedule, and both forward passes agree on its text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from di_engine import LLM, EngineConfig, SamplingParams, load_model
from di_engine.cli import run
from di_engine.evaluation import EvaluationSet
from di_engine.models import resolve_model, shipped_models
from di_engine.verify import EqualityCheck
from di_engine.verify.cached import CachedSequence
from di_model.checkpoint import load_checkpoint
from di_model.engram_tables import derive_engram
from di_model.model import Model
from di_model.numerics import Numerics
from di_model.reference import ReferenceModel
from torch import Tensor

LARGEST = 12_000_000
ROWS = 200
"""More than the window, and more entries than are selected."""
TOLERANCE = 2e-4
"""That of the golden logits in float32."""


@pytest.fixture(scope="module")
def nano() -> Path:
    if "nano" not in shipped_models():
        pytest.skip("the weights of nano are not in this tree")
    return resolve_model("nano")


@pytest.fixture(scope="module")
def ids(nano: Path) -> Tensor:
    """The beginning of a held-out novel, after BOS."""
    config = EngineConfig(model=nano, max_num_seqs=1)
    (novel,) = (text.text for text in EvaluationSet.shipped().texts if text.name == "persuasion")
    tokens = load_model(config).tokenizer.encode(novel[: 8 * ROWS], add_bos=True)
    return torch.tensor(tokens[:ROWS], dtype=torch.int32)


def test_it_fits_its_size_and_is_inspected(nano: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sum(file.stat().st_size for file in nano.rglob("*")) <= LARGEST
    assert run(["inspect", "nano"]) == 0
    assert f"{nano} holds them all" in capsys.readouterr().out.replace("\n", " ")


def test_equal_bits_under_every_schedule(nano: Path) -> None:
    report = EqualityCheck(nano, seed=2).run(8)
    assert report.difference is None
    assert report.coverage.absent == ()


def logits(model: Model, ids: Tensor, chunk: int) -> Tensor:
    sequence = CachedSequence(model, len(ids))
    return torch.cat([model.logits(sequence.append(part).hidden) for part in torch.split(ids, chunk)])


def test_both_forward_passes_agree_on_text(nano: Path, ids: Tensor) -> None:
    checkpoint = load_checkpoint(nano)
    engram = derive_engram(checkpoint.config, nano)
    reference = ReferenceModel(checkpoint.config, checkpoint.weights, engram, Numerics.FLOAT32)
    model = Model(checkpoint.config, checkpoint.weights, engram, Numerics.FLOAT32, ROWS + 5)
    with torch.no_grad():
        expected = reference.forward(ids).logits
    for chunk in (ROWS, 23):
        found = logits(model, ids, chunk)
        assert torch.allclose(found, expected, atol=TOLERANCE, rtol=0), chunk
        assert torch.equal(found.argmax(dim=1), expected.argmax(dim=1)), chunk


def test_chunks_change_no_bit_of_what_is_served(nano: Path, ids: Tensor) -> None:
    checkpoint = load_checkpoint(nano)
    engram = derive_engram(checkpoint.config, nano)
    model = Model(checkpoint.config, checkpoint.weights, engram, Numerics.RELEASE, ROWS + 5)
    whole = logits(model, ids, ROWS)
    for chunk in (64, 7):
        assert torch.equal(logits(model, ids, chunk), whole), chunk


def test_it_recalls_what_stands_beyond_the_window(nano: Path) -> None:
    """Greedy decoding says what the scores of ``di eval`` count."""
    document = next(document for document in EvaluationSet.shipped().recall if document.distance == 250)
    first, value = document.parts[:2]
    with LLM("nano", max_num_seqs=1) as llm:
        (result,) = llm.generate([first], SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
    assert result.text == value
