"""A small byte-level BPE tokenizer with the release's special and protocol tokens, built in code."""

from __future__ import annotations

from collections.abc import Iterator

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from di_model.tokenizer import BOS_TOKEN, EOS_TOKEN, PAD_TOKEN

SPECIAL = (BOS_TOKEN, EOS_TOKEN, PAD_TOKEN)
"""Ids 0, 1, 2."""
PROTOCOL = (
    "<｜System｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜deepseek_image｜>",
    "<|EOT|>",
)
NOISE_TOKEN, IMAGE_TOKEN = PROTOCOL[0], PROTOCOL[6]
WORDS = (
    " the", "the", " The", "The", "  ", "\n\n", " of", " and", " to", " in", "ing", " is", " that", " for",
    "tion", " it", " with", "er", " on", " a", " be", "ed", " hello", " world", "Hello", "10",
)  # fmt: skip
"""Words whose prefixes become tokens; variants in case and space give the compressed vocabulary work."""
SPACE, NEWLINE = "Ġ", "Ċ"
"""Printable stand-ins of the two bytes in a byte-level vocabulary."""


def tiny_tokenizer(vocab_size: int = 320) -> Tokenizer:
    """A tokenizer of exactly ``vocab_size`` ids: special, 256 bytes, merges, protocol tokens, fillers.

    Raises ValueError when the ids cannot hold the bytes and the protocol tokens.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fixed = len(SPECIAL) + len(alphabet) + len(PROTOCOL)
    if vocab_size < fixed:
        raise ValueError(f"vocab_size = {vocab_size} is too small; it must be at least {fixed}")
    merges = list(_merges())[: vocab_size - fixed]
    fillers = tuple(f"<｜place▁holder▁no▁{i}｜>" for i in range(vocab_size - fixed - len(merges)))
    tokens = (*SPECIAL, *alphabet, *(a + b for a, b in merges), *PROTOCOL, *fillers)
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in (*SPECIAL, *fillers)]
    )
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in PROTOCOL])
    return tokenizer


def _merges() -> Iterator[tuple[str, str]]:
    """Each word grown from the left one symbol at a time, each new token once."""
    made: set[str] = set()
    for word in WORDS:
        symbols = word.replace(" ", SPACE).replace("\n", NEWLINE)
        for end in range(2, len(symbols) + 1):
            if symbols[:end] not in made:
                made.add(symbols[:end])
                yield symbols[: end - 1], symbols[end - 1]
