"""The shipped evaluation set: one compressed file, written by ``examples/nano/evaluation_set.py``."""

from __future__ import annotations

import dataclasses
import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent / "nano.json.xz"
"""NOTICE beside it has the sources and their licences."""


@dataclass(frozen=True)
class HeldOutText:
    """A text that nano's training did not see.

    Attributes:
        name: of its source.
        text: as it is scored, whole.
        ngram_bits_per_byte: what an order-5 n-gram model takes that was trained on the same training text.
    """

    name: str
    text: str
    ngram_bits_per_byte: float

    @property
    def xz_bits_per_byte(self) -> float:
        """Size of the text as ``xz -9`` compresses it alone, in bits per UTF-8 byte."""
        data = self.text.encode()
        return 8 * len(lzma.compress(data, preset=9)) / len(data)


@dataclass(frozen=True)
class RecallDocument:
    """Values that are given, other text, and statements that need them again.

    Attributes:
        distance: nominal number of tokens from where a value is given to where it is asked for.
        parts: text and answer in turn, beginning with text and ending with an answer.
    """

    distance: int
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Question:
    """A prompt as the model reads it, and the only right answer, which ends with the end token."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class EvaluationSet:
    """Everything that a checkpoint is scored on.

    Attributes:
        texts: held out by source.
        recall: documents in order of distance.
        questions: by name of the task.
        provenance: where the parts come from, in words.
    """

    texts: tuple[HeldOutText, ...]
    recall: tuple[RecallDocument, ...]
    questions: Mapping[str, tuple[Question, ...]]
    provenance: str

    @classmethod
    def shipped(cls) -> EvaluationSet:
        """The set that comes with the package."""
        return cls.from_bytes(FILE.read_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> EvaluationSet:
        """Read what :meth:`to_bytes` wrote."""
        content: dict[str, Any] = json.loads(lzma.decompress(data))
        return cls(
            texts=tuple(HeldOutText(**item) for item in content["texts"]),
            recall=tuple(RecallDocument(d["distance"], tuple(d["parts"])) for d in content["recall"]),
            questions={
                task: tuple(Question(**item) for item in items)
                for task, items in content["questions"].items()
            },
            provenance=content["provenance"],
        )

    def to_bytes(self) -> bytes:
        """One compressed JSON object; the same set gives the same bytes."""
        content = json.dumps(dataclasses.asdict(self), ensure_ascii=False, sort_keys=True)
        return lzma.compress(content.encode(), preset=9 | lzma.PRESET_EXTREME)

    def quick(self) -> EvaluationSet:
        """A quarter of the documents of each distance and of the questions of each task, and all texts."""
        distances = sorted({document.distance for document in self.recall})
        by_distance = [[d for d in self.recall if d.distance == distance] for distance in distances]
        return dataclasses.replace(
            self,
            recall=tuple(d for documents in by_distance for d in documents[: -(-len(documents) // 4)]),
            questions={task: items[: -(-len(items) // 4)] for task, items in self.questions.items()},
        )
