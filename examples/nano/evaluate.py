"""What a training checkpoint can do, by the batched model: held-out bits per byte, recall by distance, tasks.

    .venv/bin/python -m examples.nano.evaluate

The figures of the shipped checkpoint come from the engine itself; these are for watching training.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from di_model.config import ModelConfig
from di_model.engram_tables import derive_engram
from torch import Tensor
from torch.nn import functional

from examples.nano.config import nano_config
from examples.nano.export import quantized_tensors, restored_parameters
from examples.nano.model import BatchModel
from examples.nano.tasks import Sample, arithmetic, define, json_extraction, recall_at
from examples.nano.texts import TrainingData, load_training_data

CONTEXT = 1024
DISTANCES = (20, 60, 120, 250, 500, 900, 1800, 3000)
"""Tokens of text between the values that were given and the question for one of them."""
CHARACTERS_PER_TOKEN = 3.6
RECALL_NAMES = 8


@dataclass(frozen=True)
class Evaluation:
    """Figures by name; shares are of exact matches, token by token under the right answer so far."""

    bits_per_byte: dict[str, float]
    recall: dict[int, float]
    tasks: dict[str, float]


class Evaluator:
    """Runs a model over held-out text and fresh samples, one sequence at a time."""

    def __init__(self, model: BatchModel, data: TrainingData, sparse: bool) -> None:
        self.model, self.data, self.sparse = model, data, sparse

    @torch.no_grad()
    def run(self, samples: int, held_out_tokens: int) -> Evaluation:
        """All figures, from ``samples`` samples of every kind and so many tokens of each held-out text."""
        random = Random(0)
        text = {d.source: self.bits_per_byte(d.text, held_out_tokens) for d in self.data.corpus.held_out}
        return Evaluation(
            bits_per_byte=text,
            recall={d: self.exact(self.recall_samples(random, d, samples)) for d in DISTANCES},
            tasks={
                "arithmetic": self.exact(arithmetic(random) for _ in range(samples)),
                "json": self.exact(json_extraction(random, self.data.words) for _ in range(samples)),
                "dictionary": self.exact(define(e) for e in random.sample(self.data.entries, samples)),
            },
        )

    def recall_samples(self, random: Random, distance: int, count: int) -> Iterator[Sample]:
        characters = int(distance * CHARACTERS_PER_TOKEN)
        for _ in range(count):
            yield recall_at(random, self.data.words, characters, RECALL_NAMES, self.data.filler)

    def bits_per_byte(self, text: str, tokens: int) -> float:
        """Bits that predicting ``text`` takes per UTF-8 byte, in contexts that start afresh every 1,024 tokens."""
        ids = self.data.tokenizer.encode(text, add_special_tokens=False).ids[:tokens]
        nats = 0.0
        for start in range(0, len(ids), CONTEXT):
            row = torch.tensor([0, *ids[start : start + CONTEXT]])
            logits = self.logits(row[:-1])
            nats += float(functional.cross_entropy(logits, row[1:], reduction="sum"))
        size = len(self.data.tokenizer.decode(ids, skip_special_tokens=False).encode())
        return nats / math.log(2) / size

    def exact(self, samples: Iterator[Sample]) -> float:
        """Share of samples whose answer tokens are all the model's first choice."""
        right = [self.answers(sample) for sample in samples]
        return sum(right) / len(right)

    def answers(self, sample: Sample) -> bool:
        encoded = self.data.tokenizer.encode_batch([p.text for p in sample], add_special_tokens=False)
        ids = torch.tensor([i for e in encoded for i in e.ids])
        answer = torch.tensor([p.answer for p, e in zip(sample, encoded, strict=True) for _ in e.ids])
        predicted = self.logits(ids[:-1]).argmax(dim=1)
        return bool((predicted == ids[1:])[answer[1:]].all())

    def logits(self, ids: Tensor) -> Tensor:
        """Logits of every position; the sequence is padded to an even number of tokens and cut again."""
        padded = functional.pad(ids, (0, len(ids) % 2))[None]
        hidden = self.model.forward(padded, sparse=self.sparse).hidden[0, : len(ids)]
        return self.model.logits(hidden)


def load_model(data: TrainingData, parameters: dict[str, Tensor], dtype: torch.dtype) -> BatchModel:
    config = ModelConfig.from_dict(nano_config(data.tokenizer, quantized=False))
    engram = derive_engram(config, data.tokenizer)
    assert engram is not None  # nano has an Engram layer
    return BatchModel(config, parameters, engram, dtype)


def as_json(evaluation: Evaluation) -> str:
    def rounded(values: dict[Any, float]) -> dict[Any, float]:
        return {name: round(value, 4) for name, value in values.items()}

    return json.dumps({name: rounded(values) for name, values in vars(evaluation).items()}, indent=2)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Evaluate a training checkpoint of nano.")
    parser.add_argument("--root", type=Path, default=Path(".cache/nano/debian"))
    parser.add_argument("--work", type=Path, default=Path(".cache/nano"))
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=8192, help="of each held-out text")
    parser.add_argument("--dense", action="store_true", help="attend to all entries instead of selected ones")
    parser.add_argument("--quantized", action="store_true", help="with the weights that export would store")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    data = load_training_data(options.root, options.work)
    state = torch.load(options.work / "checkpoint.pt", weights_only=True)
    parameters = state["parameters"]
    if options.quantized:
        config = ModelConfig.from_dict(nano_config(data.tokenizer))
        parameters = restored_parameters(config, quantized_tensors(config, parameters))
    model = load_model(data, parameters, torch.bfloat16)
    evaluation = Evaluator(model, data, not options.dense).run(options.samples, options.tokens)
    options.out.write_text(as_json(evaluation) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
