"""How well a checkpoint speaks: held-out text, recall by distance, questions, and what each part carries in it."""

from di_engine.evaluation.dataset import EvaluationSet, HeldOutText, Question, RecallDocument
from di_engine.evaluation.evaluate import (
    VARIANTS,
    Evaluation,
    FormatCost,
    TextComparison,
    Variant,
    VariantScores,
    evaluate,
)
from di_engine.evaluation.scores import EvaluationError, PieceScore, TaskScore

__all__ = [
    "VARIANTS",
    "Evaluation",
    "EvaluationError",
    "EvaluationSet",
    "FormatCost",
    "HeldOutText",
    "PieceScore",
    "Question",
    "RecallDocument",
    "TaskScore",
    "TextComparison",
    "Variant",
    "VariantScores",
    "evaluate",
]
