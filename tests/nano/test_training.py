"""Training: batches follow from their step, stages from what was learnt, and a stopped run goes on as if it had not."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from di_model.config import ModelConfig
from di_model.rope import RopeTables

from examples.nano.batches import DICTIONARY, KINDS, RECALL, RECALL_FAR, TEXT, WEIGHTS, draw_batch
from examples.nano.config import nano_config
from examples.nano.corpus import Corpus, Document, Entry
from examples.nano.curriculum import STAGES, Stage
from examples.nano.parameters import initial_parameters
from examples.nano.pieces import Pieces, rms_norm, rotate
from examples.nano.tasks import Vocabulary
from examples.nano.texts import TrainingData
from examples.nano.tokenizer import train_tokenizer
from examples.nano.train import Progress, Trainer, train

TEXT_OF_A_NOVEL = (
    "It was a fine evening in spring, and nobody in the house had yet thought of the letter. " * 200
)
WORDS = Vocabulary(
    names=("Anna", "Emma", "Ruth", "Saul", "David", "Jane"), values=("gold", "salt", "wood", "iron")
)
SHORT = (Stage("short", lengths=(64,), names=3, tokens=128),)
STAGE = Stage("test", lengths=(128,), names=3, tokens=1024, text=0.25, tasks=0.25, filler=20)


@pytest.fixture(scope="module")
def data() -> TrainingData:
    words = " ".join((*WORDS.names, *WORDS.values))
    tokenizer = train_tokenizer([TEXT_OF_A_NOVEL, f" {words} has Now And now" * 50])
    return TrainingData(
        tokenizer=tokenizer,
        corpus=Corpus((Document("novel", TEXT_OF_A_NOVEL),), ()),
        tokens=np.array(tokenizer.encode(TEXT_OF_A_NOVEL).ids, dtype=np.int32),
        entries=[Entry("river", "noun", "a large natural stream of water")],
        words=WORDS,
    )


def test_a_batch_follows_from_seed_stage_and_step(data: TrainingData) -> None:
    first, again, other = (draw_batch(data, STAGE, 128, seed, 7) for seed in (1, 1, 2))
    assert first.ids.shape == (8, 128)
    assert torch.equal(first.ids, again.ids)
    assert torch.equal(first.places, again.places)
    assert not torch.equal(first.ids, other.ids)


def test_targets_are_the_tokens_that_follow(data: TrainingData) -> None:
    batch = draw_batch(data, STAGE, 128, 1, 7)
    inside = (batch.places + 1) % 128 != 0
    assert torch.equal(batch.ids.flatten()[batch.places[inside] + 1], batch.targets[inside])


def test_answers_all_enter_the_loss_with_their_weight(data: TrainingData) -> None:
    batch = draw_batch(data, STAGE, 128, 1, 7)
    answers = batch.kinds > TEXT
    assert torch.equal(batch.weights[answers], torch.tensor(WEIGHTS)[batch.kinds[answers]])
    assert (batch.weights[~answers] == 1).all()
    assert set(batch.kinds[answers].tolist()) >= {RECALL, DICTIONARY}
    values = {data.tokenizer.encode(f" {value}").ids[0] for value in WORDS.values}
    assert set(batch.targets[batch.kinds == RECALL].tolist()) <= values
    # In these rows every statement after a name's first is an answer.
    names = [data.tokenizer.encode(f" {name}").ids for name in WORDS.names]
    assert all(len(ids) == 1 for ids in names)


def test_recall_beyond_the_window_is_told_apart(data: TrainingData) -> None:
    stage = replace(STAGE, text=0.0, tasks=0.0, filler=0, link="")
    near, far = (draw_batch(data, stage, window, 1, 3) for window in (128, 1))
    assert not (near.kinds == RECALL_FAR).any()
    assert not (far.kinds == RECALL).any()
    assert KINDS[RECALL_FAR] == "recall beyond the window"


def test_a_stage_ends_when_it_is_learnt_and_long_enough() -> None:
    progress, stage = Progress(), STAGES[0]
    progress.averages["recall, all distances"] = stage.accuracy
    for _ in range(stage.steps - 1):
        progress.finish_step(STAGES, 10, 0.1)
    assert progress.stage == 0
    progress.finish_step(STAGES, 10, 0.1)
    assert (progress.stage, progress.stage_step, progress.averages) == (1, 0, {})
    for _ in range(2 * stage.steps):
        progress.finish_step(STAGES, 10, 0.1)
    assert progress.stage == 1


def test_a_stopped_run_goes_on_as_if_it_had_not(data: TrainingData, tmp_path: Path) -> None:
    whole = Trainer(data, seed=1, pieces=Pieces(), stages=SHORT)
    whole.step()
    whole.save(tmp_path / "checkpoint.pt")
    whole.step()
    resumed = Trainer(data, seed=1, pieces=Pieces(), stages=SHORT)
    resumed.restore(tmp_path / "checkpoint.pt")
    resumed.step()
    for name, tensor in whole.parameters.items():
        assert torch.equal(tensor, resumed.parameters[name]), name
    assert resumed.progress.tokens == whole.progress.tokens
    assert resumed.progress.averages["loss: recall"] == whole.progress.averages["loss: recall"]
    with pytest.raises(ValueError, match="trained with seed 1"):
        Trainer(data, seed=2, pieces=Pieces()).restore(tmp_path / "checkpoint.pt")


def test_learning_rate_warms_up_and_falls_in_a_stage_of_decay(data: TrainingData) -> None:
    falling = replace(STAGE, steps=100, decay=True)
    trainer = Trainer(data, seed=1, pieces=Pieces(), stages=(STAGE, falling))
    rates = []
    for step, stage, stage_step in ((0, 0, 0), (500, 0, 500), (600, 1, 0), (650, 1, 50), (700, 1, 100)):
        trainer.progress.step, trainer.progress.stage, trainer.progress.stage_step = step, stage, stage_step
        rates.append(trainer.learning_rate())
    assert rates == pytest.approx([2e-3 / 50, 2e-3, 2e-3, 1.1e-3, 2e-4])


def test_training_ends_with_the_last_stage(data: TrainingData, tmp_path: Path) -> None:
    stages = (replace(SHORT[0], steps=1), replace(SHORT[0], name="longer", lengths=(64, 128), steps=2))
    trainer = Trainer(data, seed=1, pieces=Pieces(), stages=stages)
    train(trainer, tmp_path, minutes=5, save_minutes=5, log_steps=1, stop=threading.Event())
    assert trainer.finished
    assert trainer.progress.step == 3
    assert [json.loads(line)["stage"] for line in (tmp_path / "log.jsonl").open()] == [
        "longer",
        "longer",
        "finished",
    ]
    resumed = Trainer(data, seed=1, pieces=Pieces(), stages=stages)
    resumed.restore(tmp_path / "checkpoint.pt")
    train(resumed, tmp_path, minutes=5, save_minutes=5, log_steps=1, stop=threading.Event())
    assert resumed.progress.step == 3


def test_two_heads_begin_by_looking_one_and_two_tokens_back(data: TrainingData) -> None:
    config = ModelConfig.from_dict(nano_config(data.tokenizer, quantized=False))
    parameters = initial_parameters(config, seed=3)
    text, prefix = config.text, "layers.0.attn"
    ids = torch.randint(3, text.vocab_size, (64,), generator=torch.Generator().manual_seed(0))
    table = RopeTables.build(config, len(ids)).plain
    with torch.no_grad():
        x = rms_norm(parameters["embed.weight"][ids], torch.ones(text.hidden_size), text.rms_norm_eps)
        latent = x @ parameters[f"{prefix}.wq_a.weight"].T
        q = rms_norm(latent, parameters[f"{prefix}.q_norm.weight"], text.rms_norm_eps)
        q = (q @ parameters[f"{prefix}.wq_b.weight"].T).view(1, len(ids), text.num_attention_heads, -1)
        k = rms_norm(x @ parameters[f"{prefix}.wkv.weight"].T, torch.ones(text.head_dim), text.rms_norm_eps)
        q, k = rotate(q, table, False)[0], rotate(k[None, :, None], table, False)[0, :, 0]
    logits = torch.einsum("rhd,nd->hrn", q, k) * text.head_dim**-0.5
    logits += torch.full((64, 64), -torch.inf).triu(1)
    for head in range(2):
        back = logits[head].softmax(dim=1).diagonal(-(head + 1))
        assert back[head:].mean() > 0.8
