"""The loss before quantization, measured through the engine, is the one that training's own model has."""

from __future__ import annotations

import math

import pytest
import torch
from di_engine.evaluation import EvaluationSet, HeldOutText
from di_model.config import ModelConfig
from di_model.engram_tables import derive_engram
from torch.nn import functional

from examples.nano.config import nano_config
from examples.nano.model import BatchModel
from examples.nano.parameters import initial_parameters
from examples.nano.record import float32_bits_per_byte
from examples.nano.tokenizer import train_tokenizer

TEXT = "It was a fine evening in spring, and nobody in the house had yet thought of the letter. " * 8


def test_engine_and_training_agree() -> None:
    tokenizer = train_tokenizer([TEXT])
    config = ModelConfig.from_dict(nano_config(tokenizer, quantized=False))
    parameters = initial_parameters(config, seed=0)
    data = EvaluationSet((HeldOutText("text", TEXT, 0.0),), (), {}, "written for a test")
    ids = torch.tensor([0, *tokenizer.encode(TEXT, add_special_tokens=False).ids])
    engram = derive_engram(config, tokenizer)
    assert engram is not None
    with torch.no_grad():
        padded = functional.pad(ids, (0, len(ids) % 2))[None]
        model = BatchModel(config, parameters, engram)
        logits = model.logits(model.forward(padded, sparse=True).hidden[0, : len(ids)])
        nats = functional.cross_entropy(logits[:-1], ids[1:], reduction="sum")
    expected = float(nats) / math.log(2) / len(TEXT.encode())
    assert float32_bits_per_byte(tokenizer, parameters, data) == pytest.approx(expected, rel=1e-4)
