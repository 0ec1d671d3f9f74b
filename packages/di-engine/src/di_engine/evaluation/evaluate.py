"""A whole evaluation: held-out text, every task, each part switched off in turn, and what number formats cost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from di_model.numerics import Numerics
from di_model.parts import ALL_PARTS, EntrySelection, Parts

from di_engine.config import EngineConfig
from di_engine.evaluation.dataset import EvaluationSet, HeldOutText
from di_engine.evaluation.scores import (
    PieceScore,
    TaskScore,
    combined,
    score_questions,
    score_recall,
    score_text,
)
from di_engine.llm import LLM
from di_engine.loading import load_model

CONTEXT = 4096
"""Tokens of a context, for text and tasks alike."""
COMPARED_PIECES = 1
"""Pieces from the beginning of each text on which variants and number formats are compared."""
MAX_NUM_SEQS = 16
TRAINING_FILE = "training.json"
"""What training recorded beside a checkpoint that we trained: its loss before it was quantized, among others."""

Report = Callable[[str, int], object]
"""Called with what is being scored and the prompt tokens just read."""


@dataclass(frozen=True)
class Variant:
    """A name for parts of the model that are at work."""

    name: str
    parts: Parts


VARIANTS = (
    Variant("all parts", ALL_PARTS),
    Variant("Engram off", Parts(engram=False)),
    Variant("recent entries for indexer", Parts(selection=EntrySelection.RECENT)),
    Variant("window only", Parts(selection=EntrySelection.NONE)),
)
"""What is scored: the whole model, then one part switched off at a time."""


@dataclass(frozen=True)
class VariantScores:
    """Scores of one variant; ``bits_per_byte`` is over the compared pieces of all texts together."""

    name: str
    bits_per_byte: float
    tasks: tuple[TaskScore, ...]


@dataclass(frozen=True)
class TextComparison:
    """A text under all parts beside what knows less, in bits per byte.

    ``num_bytes`` and ``num_tokens`` say how much of it the model was scored on; the others are of the whole text.
    """

    name: str
    num_bytes: int
    num_tokens: int
    model: float
    ngram: float
    xz: float


@dataclass(frozen=True)
class FormatCost:
    """What number formats cost, in bits per byte over the compared pieces of all texts together.

    Attributes:
        release: the checkpoint as it is served.
        float32: the stored weights without rounding of activations and caches.
        trained: the weights before they were quantized, in float32, as training recorded it; None: unknown.
    """

    release: float
    float32: float
    trained: float | None


@dataclass(frozen=True)
class Evaluation:
    """Everything that was measured. ``context`` is in tokens."""

    model: Path
    context: int
    texts: tuple[TextComparison, ...]
    variants: tuple[VariantScores, ...]
    formats: FormatCost
    seconds: float


def evaluate(
    model: Path,
    data: EvaluationSet,
    *,
    whole_texts: bool = True,
    num_threads: int | None = None,
    instruction_set: str | None = None,
    report: Report = lambda what, tokens: None,
) -> Evaluation:
    """Score a checkpoint directory.

    Args:
        model: the directory.
        data: what to score it on.
        whole_texts: False: of the texts only the pieces on which variants are compared.
        num_threads: of the kernels; results do not depend on it.
        instruction_set: of the kernels, for the whole process; None: as it is. Results do not depend on it, but for
            amx, which has bits of its own.
        report: told of progress.

    Raises:
        EngineConfigError: the model has fewer positions than a context has tokens, or a setting is not allowed.
        FileNotFoundError, ValueError: see :func:`~di_engine.loading.load_model`.
        EvaluationError: the engine refused a prompt.
    """
    start = time.monotonic()
    kernels = {"num_threads": num_threads, "instruction_set": instruction_set}
    texts: tuple[TextComparison, ...] = ()
    variants = []
    for variant in VARIANTS:
        whole = variant.parts == ALL_PARTS and whole_texts
        with _open(model, variant.parts, Numerics.RELEASE, kernels) as llm:
            pieces, scores = _score(llm, variant.name, data, None if whole else COMPARED_PIECES, report)
        variants.append(scores)
        if variant.parts == ALL_PARTS:
            texts = tuple(map(_compare, data.texts, pieces))
    with _open(model, ALL_PARTS, Numerics.FLOAT32, kernels) as llm:
        float32 = compared_bits_per_byte(llm, data, lambda tokens: report("float32", tokens))
    formats = FormatCost(variants[0].bits_per_byte, float32, _recorded_loss(model))
    return Evaluation(model, CONTEXT, texts, tuple(variants), formats, time.monotonic() - start)


def compared_bits_per_byte(
    llm: LLM, data: EvaluationSet, progress: Callable[[int], object] = lambda tokens: None
) -> float:
    """Bits per byte of the compared pieces of all texts together."""
    scores = [score_text(llm, text, CONTEXT, COMPARED_PIECES, progress) for text in data.texts]
    return combined(piece for pieces in scores for piece in pieces)


def _score(
    llm: LLM, name: str, data: EvaluationSet, limit: int | None, report: Report
) -> tuple[list[tuple[PieceScore, ...]], VariantScores]:
    """Scored pieces of every text, at most ``limit`` of each, and the scores of the variant that ``llm`` is."""

    def progress(tokens: int) -> None:
        report(name, tokens)

    pieces = [score_text(llm, text, CONTEXT, limit, progress) for text in data.texts]
    compared = combined(piece for text in pieces for piece in text[:COMPARED_PIECES])
    recall = score_recall(llm, data.recall, progress)
    questions = (score_questions(llm, task, items, progress) for task, items in data.questions.items())
    return pieces, VariantScores(name, compared, (*recall, *questions))


def _compare(text: HeldOutText, pieces: Sequence[PieceScore]) -> TextComparison:
    return TextComparison(
        text.name,
        sum(piece.num_bytes for piece in pieces),
        sum(piece.num_tokens for piece in pieces),
        combined(pieces),
        text.ngram_bits_per_byte,
        text.xz_bits_per_byte,
    )


@contextmanager
def _open(model: Path, parts: Parts, numerics: Numerics, kernels: Mapping[str, Any]) -> Iterator[LLM]:
    settings = {
        "numerics": numerics,
        "max_model_len": CONTEXT,
        "max_num_seqs": MAX_NUM_SEQS,
        "load_draft": False,
        **kernels,
    }
    loaded = load_model(EngineConfig.from_dict({"model": model, **settings}), parts=parts)
    with LLM(model, loaded=loaded, **settings) as llm:
        yield llm


def _recorded_loss(model: Path) -> float | None:
    file = model / TRAINING_FILE
    if not file.is_file():
        return None
    return float(json.loads(file.read_text(encoding="utf-8"))["float32_bits_per_byte"])
