"""Batches of training rows: token ids, what to predict with which weight, and which task each answer belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from di_model.tokenizer import BOS_ID
from torch import Tensor

from examples.nano.curriculum import Stage
from examples.nano.tasks import RecallShape, Sample, arithmetic, definition, json_extraction, recall
from examples.nano.texts import TrainingData

CONTEXT_SHARE = 0.25
"""Share of the tokens that are no answers which enter the loss of a task row."""
KINDS = ("text", "recall", "recall beyond the window", "arithmetic", "json", "dictionary")
TEXT, RECALL, RECALL_FAR, ARITHMETIC, JSON, DICTIONARY = range(len(KINDS))
WEIGHTS = (1.0, 8.0, 8.0, 4.0, 1.0, 2.0)
"""Weight of a token in the loss by kind: the fewer tokens tell of a task, the more each counts."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of one step.

    Attributes:
        ids: int64 ``[B, T]``.
        places: int64 ``[n]`` flat positions whose next token enters the loss.
        targets: int64 ``[n]`` that next token.
        weights: float32 ``[n]``.
        kinds: int64 ``[n]``, index into KINDS of an answer's task; -1 for a token of a task that is no answer.
    """

    ids: Tensor
    places: Tensor
    targets: Tensor
    weights: Tensor
    kinds: Tensor


class _Row:
    """A row under construction: ids with the kind of each token, -1 for no answer."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.kinds: list[int] = []

    def add(self, data: TrainingData, sample: Sample, kind: int, window: int = 0) -> None:
        encoded = data.tokenizer.encode_batch([piece.text for piece in sample], add_special_tokens=False)
        latest: dict[str, int] = {}
        before = ""
        for piece, encoding in zip(sample, encoded, strict=True):
            ids, found = encoding.ids, kind
            if kind == RECALL:
                if piece.answer and len(self.ids) - latest[before] >= window:
                    found = RECALL_FAR
                latest[before] = len(self.ids)
                before = piece.text
            self.ids += ids
            self.kinds += [found if piece.answer else -1] * len(ids)


def draw_batch(data: TrainingData, stage: Stage, window: int, seed: int, step: int) -> Batch:
    """The batch of a step; it follows from seed, stage and step alone."""
    random = Random(f"{seed}/{stage.name}/{step}")
    length = stage.length(step) + 1
    rows = max(1, stage.tokens // stage.length(step))
    ids = np.zeros((rows, length), dtype=np.int64)
    kinds = np.zeros((rows, length), dtype=np.int64)
    for row in range(rows):
        # Shares are met over the batch; what does not divide is drawn.
        place = (row + random.random()) / rows
        ids[row], kinds[row] = _draw_row(data, stage, length, window, random, place)
    return _select(ids, kinds, np.random.default_rng([seed, step]))


def _draw_row(
    data: TrainingData, stage: Stage, length: int, window: int, random: Random, place: float
) -> tuple[list[int] | np.ndarray, list[int] | np.ndarray]:
    if place < stage.text:
        ids = data.window(random, length).copy()
        ids[0] = BOS_ID
        return ids, np.full(length, TEXT)
    row = _Row()
    if place < stage.text + stage.tasks:
        while len(row.ids) < length:
            kind, sample = _draw_task(data, random)
            row.add(data, sample, kind)
    else:
        shape = RecallShape(stage.names, length // 4, stage.filler, stage.link)
        row.add(data, recall(random, data.words, shape, data.filler), RECALL, window)
    padding = max(0, length - len(row.ids))
    return row.ids[:length] + [BOS_ID] * padding, row.kinds[:length] + [-1] * padding


def _draw_task(data: TrainingData, random: Random) -> tuple[int, Sample]:
    choice = random.random()
    if choice < 0.2:
        return ARITHMETIC, arithmetic(random)
    if choice < 0.4:
        return JSON, json_extraction(random, data.words)
    return DICTIONARY, definition(random, data.entries)


def _select(ids: np.ndarray, kinds: np.ndarray, generator: np.random.Generator) -> Batch:
    targets, kind = ids[:, 1:].flatten(), kinds[:, 1:].flatten()
    kept = (kind >= 0) | (generator.random(len(kind)) < CONTEXT_SHARE)
    places = np.flatnonzero(kept)
    weights = np.where(kind >= 0, np.array(WEIGHTS)[kind], 1.0)[places].astype(np.float32)
    return Batch(
        ids=torch.from_numpy(ids[:, :-1].copy()),
        places=torch.from_numpy(places),
        targets=torch.from_numpy(targets[places]),
        weights=torch.from_numpy(weights),
        kinds=torch.from_numpy(kind[places]),
    )


def answer_accuracy(batch: Batch, predicted: Tensor) -> Iterator[tuple[str, float, int]]:
    """Name, share of right tokens and number of tokens of every kind of answer in the batch."""
    right = predicted == batch.targets
    for kind, name in enumerate(KINDS):
        chosen = batch.kinds == kind
        if chosen.any():
            yield name, float(right[chosen].float().mean()), int(chosen.sum())
