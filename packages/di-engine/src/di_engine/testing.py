"""A model whose next token is a function of the tokens before it, for tests of everything around a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from di_cache import CachePool
from di_model.batch import Batch
from di_model.config import ModelConfig
from di_model.model import StepOutput
from di_model.testing import tiny_config, tiny_tokenizer
from di_model.tokenizer import Tokenizer
from torch import Tensor

from di_engine.capacity import available_memory, plan_capacity
from di_engine.config import EngineConfig
from di_engine.loading import LoadedModel

NextLogits = Callable[[tuple[int, ...]], Mapping[int, float]]
"""From all tokens so far to the logits that are not ``BACKGROUND``."""

BACKGROUND = -100.0
"""Logit of every token that a script does not mention: it is never drawn."""


class ScriptedModel:
    """Calls ``next_logits`` with the tokens of a sequence up to each row.

    It takes them from the rows of the steps, as a model takes them from its cache: rows that never came, or came in
    another order, show. Rows of rejected drafts are computed anew; no more of them than the state rings have room for.
    """

    def __init__(self, next_logits: NextLogits, vocab_size: int) -> None:
        self._next_logits = next_logits
        self._vocab_size = vocab_size
        self._history: dict[int, list[int]] = {}

    def forward(self, batch: Batch, cache: CachePool) -> StepOutput:
        """The hidden rows are the logits."""
        most_rejected = cache.layout.spec.max_draft_tokens
        hidden = torch.full((batch.num_rows, self._vocab_size), BACKGROUND)
        rows = zip(
            batch.window.slot.tolist(), batch.positions.tolist(), batch.tokens.tolist(), hidden, strict=True
        )
        for slot, position, token, row in rows:
            history = self._history.setdefault(slot, [])
            if position == 0 or len(history) - most_rejected <= position:
                del history[position:]
            if position != len(history):
                raise ValueError(f"position is {position}; slot {slot} holds {len(history)} tokens")
            history.append(token)
            for column, value in self._next_logits(tuple(history)).items():
                row[column] = value
        return StepOutput(hidden, None)

    def logits(self, hidden: Tensor) -> Tensor:
        """Rows of ``forward``, as they are."""
        return hidden


def scripted_model(
    config: EngineConfig,
    next_logits: NextLogits,
    *,
    extra_tokens: Sequence[str] = (),
    max_position_embeddings: int = 4096,
) -> LoadedModel:
    """A scripted model with the tokenizer of :func:`di_model.testing.tiny_tokenizer`.

    Args:
        config: settings of the engine to be.
        next_logits: the script.
        extra_tokens: texts of single tokens, with ids from 320 on.
        max_position_embeddings: of the model.
    """
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(list(extra_tokens))
    vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)
    raw = tiny_config(text={"max_position_embeddings": max_position_embeddings, "engram_layer_ids": []})
    raw["text_config"]["vocab_size"] = vocab_size
    model = ModelConfig.from_dict(raw)
    return LoadedModel(
        model,
        Tokenizer(tokenizer, model),
        ScriptedModel(next_logits, vocab_size),
        plan_capacity(config, model, available_memory()),
    )


def follow(*texts: Sequence[int]) -> NextLogits:
    """A script that continues any beginning of one of ``texts`` (token ids) with its next token, and ends everything
    else with token 1, the end of the sequence."""

    def next_logits(prefix: tuple[int, ...]) -> dict[int, float]:
        for text in texts:
            if len(prefix) < len(text) and tuple(text[: len(prefix)]) == prefix:
                return {text[len(prefix)]: 0.0}
        return {1: 0.0}

    return next_logits
