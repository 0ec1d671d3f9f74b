"""Training nano's backbone: one command, resumable, logged, on the CPU.

    .venv/bin/python -m examples.nano.train --minutes 60

Starts anew or goes on from the last checkpoint in the working directory, and stops after the given time.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from di_model.config import ModelConfig
from di_model.engram_tables import derive_engram
from torch import Tensor
from torch.nn import functional

from examples.nano.batches import KINDS, RECALL, RECALL_FAR, Batch, answer_accuracy, draw_batch
from examples.nano.config import nano_config
from examples.nano.curriculum import STAGES, Stage
from examples.nano.model import BatchModel
from examples.nano.parameters import initial_parameters, is_projection, is_trained
from examples.nano.pieces import Pieces, compiled_pieces
from examples.nano.texts import TrainingData, load_training_data

LEARNING_RATE = 2e-3
WARM_UP_STEPS = 50
BETAS = (0.9, 0.98)
WEIGHT_DECAY = 0.05
LARGEST_GRADIENT = 1.0
BIAS_STEP = 5e-3
"""How far a step moves the selection bias of an expert that took more or less than its share."""
INDEXED_ROWS = 64
"""Rows of each sequence whose index scores are trained in a step."""
MEMORY = 0.95
"""How much of a running average remains after a step."""


@dataclass
class Progress:
    """Where training stands; saved with the weights."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    stage: int = 0
    stage_step: int = 0
    averages: dict[str, float] = field(default_factory=dict)

    def average(self, name: str, value: float) -> None:
        before = self.averages.get(name, value)
        self.averages[name] = MEMORY * before + (1 - MEMORY) * value

    def finish_step(self, stages: Sequence[Stage], tokens: int, seconds: float) -> None:
        """Count a step; go to the next stage, or behind the last one, when this one is done."""
        stage = stages[self.stage]
        self.step, self.stage_step = self.step + 1, self.stage_step + 1
        self.tokens, self.seconds = self.tokens + tokens, self.seconds + seconds
        learnt = self.averages.get("recall, all distances", 0.0) >= stage.accuracy
        if learnt and self.stage_step >= stage.steps:
            self.stage, self.stage_step, self.averages = self.stage + 1, 0, {}


class Trainer:
    """Model, optimizer and progress.

    Args:
        data: what rows are drawn from.
        seed: of first values and of every batch.
        pieces: element-wise functions of the model, plain or compiled.
        stages: what to train on, one after another.
    """

    def __init__(
        self,
        data: TrainingData,
        seed: int,
        pieces: Pieces,
        stages: Sequence[Stage] = STAGES,
    ) -> None:
        self.data, self.seed, self.stages = data, seed, stages
        self.config = ModelConfig.from_dict(nano_config(data.tokenizer, quantized=False))
        engram = derive_engram(self.config, data.tokenizer)
        assert engram is not None  # nano has an Engram layer
        self.parameters = initial_parameters(self.config, seed)
        self.model = BatchModel(self.config, self.parameters, engram, torch.bfloat16, pieces)
        trained = {name: tensor for name, tensor in self.parameters.items() if is_trained(name)}
        self.trained = list(trained.values())
        self.optimizers = _optimizers(trained)
        self.progress = Progress()

    def step(self) -> None:
        """One step on a fresh batch."""
        begin, stage = time.monotonic(), self.stages[self.progress.stage]
        window = self.config.text.sliding_window
        batch = draw_batch(self.data, stage, window, self.seed, self.progress.step)
        rows = self.sampled_rows(stage)
        output = self.model.forward(batch.ids, sparse=stage.sparse, sampled=rows, pairs=stage.pairs)
        logits = self.model.logits(output.hidden.flatten(0, 1)[batch.places])
        losses = functional.cross_entropy(logits, batch.targets, reduction="none")
        loss = (losses * batch.weights).sum() / batch.weights.sum()
        (loss + output.indexer_loss).backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.trained, LARGEST_GRADIENT)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.learning_rate()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.balance(output.expert_load)
        self.record(batch, losses.detach(), logits.detach().argmax(dim=1))
        self.progress.average("gradient norm", float(norm))
        self.progress.average("indexer loss", float(output.indexer_loss.detach()))
        self.progress.average("largest expert load", float(output.expert_load.max()))
        self.progress.finish_step(self.stages, batch.ids.numel(), time.monotonic() - begin)

    @property
    def finished(self) -> bool:
        """Whether the last stage is done."""
        return self.progress.stage == len(self.stages)

    def sampled_rows(self, stage: Stage) -> Tensor | None:
        if not stage.index:
            return None
        step = self.progress.step
        generator = torch.Generator().manual_seed(self.seed + step)
        return torch.randperm(stage.length(step), generator=generator)[:INDEXED_ROWS]

    def learning_rate(self) -> float:
        progress = self.progress
        rate = LEARNING_RATE * min(1.0, (progress.step + 1) / WARM_UP_STEPS)
        if not self.finished and self.stages[progress.stage].decay:
            rate *= 1 - 0.9 * progress.stage_step / self.stages[progress.stage].steps
        return rate

    @torch.no_grad()
    def balance(self, load: Tensor) -> None:
        """Move selection biases against the load of their experts (the rule of auxiliary-loss-free balancing)."""
        for layer, shares in enumerate(load):
            bias = self.parameters[f"layers.{layer}.ffn.gate.bias"]
            bias += BIAS_STEP * torch.sign(shares.mean() - shares)

    def record(self, batch: Batch, losses: Tensor, predicted: Tensor) -> None:
        recalled = (batch.kinds == RECALL) | (batch.kinds == RECALL_FAR)
        if recalled.any():
            right = (predicted == batch.targets)[recalled].float().mean()
            self.progress.average("recall, all distances", float(right))
        for name, accuracy, _ in answer_accuracy(batch, predicted):
            self.progress.average(f"accuracy: {name}", accuracy)
        for kind, name in enumerate(KINDS):
            if (batch.kinds == kind).any():
                self.progress.average(f"loss: {name}", float(losses[batch.kinds == kind].mean()))

    def save(self, file: Path) -> None:
        """Write everything that going on needs; the file is replaced as a whole."""
        state = {
            "parameters": {name: tensor.detach() for name, tensor in self.parameters.items()},
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "progress": vars(self.progress),
            "seed": self.seed,
        }
        part = file.with_suffix(".part")
        torch.save(state, part)
        part.replace(file)

    def restore(self, file: Path) -> None:
        """Go on from a saved state. Raises ValueError when it belongs to another seed."""
        state: Mapping[str, Any] = torch.load(file, weights_only=True)
        if state["seed"] != self.seed:
            raise ValueError(f"seed is {self.seed}; {file} was trained with seed {state['seed']}")
        with torch.no_grad():
            for name, tensor in self.parameters.items():
                tensor.copy_(state["parameters"][name])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.progress = Progress(**state["progress"])

    def summary(self) -> dict[str, Any]:
        """One line of the log."""
        progress = self.progress
        return {
            "step": progress.step,
            "tokens": progress.tokens,
            "seconds": round(progress.seconds, 1),
            "stage": "finished" if self.finished else self.stages[progress.stage].name,
            "learning_rate": self.learning_rate(),
            **{name: round(value, 4) for name, value in progress.averages.items()},
        }


def _optimizers(trained: Mapping[str, Tensor]) -> list[torch.optim.Optimizer]:
    """Muon for projections, which need far fewer tokens with it; AdamW for tables, heads, norms and the rest."""
    projections = [tensor for name, tensor in trained.items() if is_projection(name, tensor)]
    others = [tensor for name, tensor in trained.items() if not is_projection(name, tensor)]
    return [
        torch.optim.Muon(
            projections, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=LEARNING_RATE, betas=BETAS, weight_decay=0.0, fused=True),
    ]


def train(
    trainer: Trainer, work: Path, minutes: float, save_minutes: float, log_steps: int, stop: threading.Event
) -> None:
    """Train to the end, for ``minutes`` or until ``stop``; ``work`` gets ``log.jsonl`` and ``checkpoint.pt``."""
    end = time.monotonic() + 60 * minutes
    saved = time.monotonic()
    with (work / "log.jsonl").open("a", encoding="utf-8") as log:
        while time.monotonic() < end and not stop.is_set() and not trainer.finished:
            trainer.step()
            if trainer.progress.step % log_steps == 0:
                log.write(json.dumps(trainer.summary()) + "\n")
                log.flush()
            if time.monotonic() - saved > 60 * save_minutes:
                trainer.save(work / "checkpoint.pt")
                saved = time.monotonic()
    trainer.save(work / "checkpoint.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train nano's backbone, or go on with it.")
    parser.add_argument(
        "--root", type=Path, default=Path(".cache/nano/debian"), help="where packages are unpacked"
    )
    parser.add_argument(
        "--work", type=Path, default=Path(".cache/nano"), help="tokenizer, log and checkpoint"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, required=True, help="how long to train now")
    parser.add_argument("--save-minutes", type=float, default=3.0)
    parser.add_argument("--log-steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = load_training_data(options.root, options.work)
    trainer = Trainer(data, options.seed, compiled_pieces())
    if (options.work / "checkpoint.pt").is_file():
        trainer.restore(options.work / "checkpoint.pt")
    stop = threading.Event()
    for request in (signal.SIGTERM, signal.SIGINT):  # the step in work is finished and saved
        signal.signal(request, lambda *_: stop.set())
    train(trainer, options.work, options.minutes, options.save_minutes, options.log_steps, stop)


if __name__ == "__main__":
    main()
