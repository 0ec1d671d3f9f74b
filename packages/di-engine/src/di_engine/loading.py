"""From a checkpoint directory to a model that is ready to run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from di_cache import CachePool
from di_model.batch import Batch
from di_model.checkpoint import load_checkpoint
from di_model.config import ModelConfig
from di_model.engram_tables import derive_engram
from di_model.model import Model, StepOutput
from di_model.packed import lay_out
from di_model.parts import ALL_PARTS, Parts
from di_model.tokenizer import Tokenizer
from torch import Tensor

from di_engine.capacity import Capacity, available_memory, plan_capacity, plan_weights
from di_engine.config import EngineConfig


class StepModel(Protocol):
    """What the runner asks of a model; :class:`di_model.model.Model` is one, a test may bring its own."""

    def forward(self, batch: Batch, cache: CachePool) -> StepOutput:
        """Compute the rows of a step and keep their keys and state in the cache."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits ``[rows, vocab]`` of hidden rows."""


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model with all that belongs to it.

    native_plan: whether the runner binds it to native objects, if it is a :class:`di_model.model.Model` on the CPU.
    """

    config: ModelConfig
    tokenizer: Tokenizer
    model: StepModel
    capacity: Capacity
    native_plan: bool = True


def load_model(config: EngineConfig, *, parts: Parts = ALL_PARTS) -> LoadedModel:
    """Open the checkpoint directory of ``config``. Sizes are settled first: a bad setting never costs a load.

    Args:
        config: settings of the engine to be.
        parts: of the model that are at work; all, unless it is measured what one carries.

    Raises:
        FileNotFoundError: no directory, no ``config.json`` or no ``tokenizer.json``.
        ConfigError: the configuration is not that of a supported model.
        CheckpointError: the files, with every problem named.
        TokenizerError: the tokenizer does not fit the model.
        EngineConfigError: a setting does not fit the model or the machine.
        PackedFileError: the file of packed weights can neither be read nor written.
    """
    if not config.model.is_dir():
        raise FileNotFoundError(f"model: no checkpoint directory at {config.model}")
    model_config = ModelConfig.from_file(config.model)
    available = available_memory()
    layout, weight_bytes = plan_weights(config, model_config, available)
    capacity = plan_capacity(config, model_config, available - weight_bytes)
    tokenizer = Tokenizer.from_file(config.tokenizer or config.model, model_config)
    engram = derive_engram(model_config, tokenizer.raw)
    checkpoint = load_checkpoint(config.model, config=model_config, draft=config.load_draft)
    # Rows of a speculative block lie behind the last token of a full sequence.
    positions = capacity.max_model_len + config.max_draft_tokens
    weights = lay_out(checkpoint, layout, config.packed_directory)
    model = Model(model_config, weights, engram, config.numerics, positions, parts)
    return LoadedModel(model_config, tokenizer, model, capacity, config.native_plan)
