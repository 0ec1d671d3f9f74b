"""nano's tokenizer: a byte-level BPE of 4,096 ids with the special and protocol tokens of the release.

Ids 0, 1, 2 are the special tokens that the checkpoint specification (7) fixes; bytes and merges follow; the protocol
tokens stand at the end, so that a prompt rendered for V4.1 becomes the same kind of ids here.
"""

from __future__ import annotations

from collections.abc import Iterable

from di_model.tokenizer import BOS_TOKEN, EOS_TOKEN, PAD_TOKEN
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 4096
SPECIAL_TOKENS = (BOS_TOKEN, EOS_TOKEN, PAD_TOKEN)
SYSTEM, USER, ASSISTANT = "<｜System｜>", "<｜User｜>", "<｜Assistant｜>"
THINK, END_OF_THINKING = "<think>", "</think>"
IMAGE_TOKEN = "<｜deepseek_image｜>"
NOISE_TOKEN = SYSTEM
"""Filler of a draft block, as in the release."""
PROTOCOL_TOKENS = (
    SYSTEM,
    "<｜fim▁hole｜>",
    "<｜fim▁begin｜>",
    "<｜fim▁end｜>",
    USER,
    ASSISTANT,
    "<|EOT|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
    "<｜tool▁sep｜>",
    THINK,
    END_OF_THINKING,
    "｜DSML｜",
    "<｜begin▁sys｜>",
    "<｜end▁sys｜>",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜task｜>",
    "<｜title｜>",
    "<｜answer｜>",
    "<｜search｜>",
    "<dsml:",
    "</dsml:",
    "<｜search▁begin｜>",
    "<｜search▁end｜>",
    "<｜extracted_url｜>",
    "<｜read_url｜>",
    IMAGE_TOKEN,
)
"""Tokens that the release writes into prompts and parses from answers; like there, none is marked special."""

_PIECES = r"[^\r\n\p{L}\p{N}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Trains the tokenizer on ``texts``; the same texts in the same order give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    # Digits stay apart: a model this small learns sums and recalls numbers digit by digit.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(PROTOCOL_TOKENS),
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in PROTOCOL_TOKENS])
    return tokenizer


def single_tokens(tokenizer: Tokenizer, words: Iterable[str]) -> list[str]:
    """Those of ``words`` that are one token when a space stands before them."""
    return [word for word in words if len(tokenizer.encode(f" {word}", add_special_tokens=False).ids) == 1]
