"""The demonstration checkpoint: random weights, and a vocabulary whose random text can be read."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from di_model.engram_tables import compressed_vocabulary
from di_model.testing import tiny_config, tiny_tokenizer, write_checkpoint
from tokenizers import Tokenizer

VOCAB_SIZE = 4096
"""Enough that the 256 bytes, most of which are no text by themselves, are seldom drawn."""

SPACE = "Ġ"
"""How a byte-level vocabulary writes a space."""

FILLER = "place▁holder"
"""In the name of every token that is there to fill a vocabulary."""

CONSONANTS, VOWELS = "bdfghklmnprstvwyz", "aeiou"


def write_demo_checkpoint(directory: Path, seed: int) -> None:
    """Write a small checkpoint in the released layout to a directory: every layer role, quantized, with a tokenizer.

    The weights follow from ``seed``.
    """
    tokenizer = readable_tokenizer()
    compressed = int(compressed_vocabulary(tokenizer).max()) + 1
    config = tiny_config(text={"vocab_size": VOCAB_SIZE, "engram_compressed_vocab_size": compressed})
    write_checkpoint(directory, config, seed=seed)
    tokenizer.save(str(directory / "tokenizer.json"))


def readable_tokenizer() -> Tokenizer:
    """That of :func:`di_model.testing.tiny_tokenizer`, with syllables and short words in place of its fillers."""
    content: dict[str, Any] = json.loads(tiny_tokenizer(VOCAB_SIZE).to_str())
    vocabulary, merges, added = content["model"]["vocab"], content["model"]["merges"], content["added_tokens"]
    fillers = [token for token in added if FILLER in token["content"]]
    content["added_tokens"] = [token for token in added if FILLER not in token["content"]]
    parts = ((left, right) for left, right in _parts() if left + right not in vocabulary)
    for filler, (left, right) in zip(fillers, parts, strict=False):
        vocabulary[left + right] = vocabulary.pop(filler["content"])
        merges.append([left, right])
    return Tokenizer.from_str(json.dumps(content))


def _parts() -> Iterator[tuple[str, str]]:
    """Both halves of every syllable, of every syllable behind a space, and of words of two syllables."""
    syllables = [consonant + vowel for consonant, vowel in itertools.product(CONSONANTS, VOWELS)]
    yield from itertools.product(CONSONANTS, VOWELS)
    yield from ((SPACE, syllable) for syllable in syllables)
    for shift in range(len(syllables)):  # so that the words that fit begin and end with every syllable
        yield from zip((SPACE + s for s in syllables), syllables[shift:] + syllables[:shift], strict=True)
