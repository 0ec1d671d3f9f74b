"""What the Engram layers derive at load time: hash constants and the compressed vocabulary.

None of it is stored in a checkpoint, and one wrong constant makes every lookup wrong. Source: checkpoint
spec, section 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from di_kernels.ops.engram import EngramHash
from tokenizers import Regex, Tokenizer, normalizers
from torch import Tensor

from di_model.config import ConfigError, ModelConfig, TextConfig
from di_model.tokenizer import PAD_ID, PAD_TOKEN, TokenizerError, open_tokenizer

HASH_SEED = 0
LAYER_SEED_STRIDE = 10007
REPLACEMENT_CHARACTER = "�"
LONE_SPACE_MARK = "\ue000"
DECODE_BATCH = 8192
"""Tokens decoded per call: bounds the memory of the intermediate lists."""


@dataclass(frozen=True, eq=False)
class EngramTables:
    """Hash constants of one Engram layer, int64; ``n`` is the longest n-gram, ``h`` the heads per order."""

    layer: int
    primes: Tensor
    """``[n-1, h]``: rows of each segment of the table, order by order."""
    offsets: Tensor
    """``[(n-1)*h]``: first row of each segment, columns order-major (8.2)."""
    multipliers: Tensor
    """``[n]``: odd factor of the token at distance 0..n-1 (8.3)."""

    @property
    def hash(self) -> EngramHash:
        """The same constants as the kernels take them."""
        return EngramHash(multipliers=self.multipliers, primes=self.primes, offsets=self.offsets)


@dataclass(frozen=True, eq=False)
class EngramData:
    """Everything derived for the Engram layers of one model."""

    vocabulary: Tensor
    """int32 ``[ids]``: compressed id of every token id."""
    pad: int
    """Compressed id of the padding token, which fills windows before the sequence start."""
    tables: tuple[EngramTables, ...]
    """One for each of ``engram_layer_ids``, in that order."""


def derive_engram(config: ModelConfig, tokenizer: Tokenizer | str | Path) -> EngramData | None:
    """Derives tables and vocabulary; None for a model without Engram.

    Args:
        config: model configuration.
        tokenizer: the ``tokenizer.json`` of the model directory, or that file opened without any change.

    Raises ConfigError when the vocabulary compresses to another size than ``engram_compressed_vocab_size``,
    TokenizerError for a tokenizer that 8.4 does not allow.
    """
    text = config.text
    if not text.engram_layer_ids:
        return None
    declared = text.engram_compressed_vocab_size
    if declared is None:
        vocabulary, size = torch.arange(text.vocab_size, dtype=torch.int32), text.vocab_size
    else:
        vocabulary = compressed_vocabulary(tokenizer)
        size = int(vocabulary.max()) + 1
        if size != declared:
            name = "text_config.engram_compressed_vocab_size"
            raise ConfigError(name, declared, f"{size}, which the tokenizer's vocabulary compresses to")
    if text.engram_pad_token_id >= len(vocabulary):
        name = "text_config.engram_pad_token_id"
        raise ConfigError(name, text.engram_pad_token_id, f"ids of the tokenizer, 0..{len(vocabulary) - 1}")
    pad = int(vocabulary[text.engram_pad_token_id])
    return EngramData(vocabulary, pad, engram_tables(text, size))


def engram_tables(text: TextConfig, compressed_size: int) -> tuple[EngramTables, ...]:
    """Hash constants of every Engram layer, for a vocabulary of ``compressed_size`` classes (8.1 to 8.3)."""
    tables = []
    for layer, sizes in zip(text.engram_layer_ids, text.engram_table_sizes, strict=True):
        primes = torch.tensor(sizes, dtype=torch.int64)
        flat = primes.flatten()
        tables.append(
            EngramTables(
                layer=layer,
                primes=primes,
                offsets=flat.cumsum(0) - flat,
                multipliers=hash_multipliers(layer, text.engram_max_ngram_size, compressed_size),
            )
        )
    return tuple(tables)


def hash_multipliers(layer: int, max_ngram_size: int, compressed_size: int) -> Tensor:
    """Odd numbers whose product with any compressed id stays below 2^63."""
    bound = max(1, (2**63 - 1) // compressed_size // 2)
    generator = np.random.default_rng(HASH_SEED + LAYER_SEED_STRIDE * layer)
    drawn = generator.integers(0, bound, size=max_ngram_size, dtype=np.int64)
    return torch.from_numpy(2 * drawn + 1)


def compressed_vocabulary(tokenizer: Tokenizer | str | Path) -> Tensor:
    """Class of every token id under case, accent and white space folding (8.4).

    Args:
        tokenizer: a ``tokenizer.json``, or that file opened without added placeholders.

    Returns:
        int32 ``[ids]``, classes numbered by first appearance.

    Raises TokenizerError for a missing padding token or ids with gaps.
    """
    tok = tokenizer if isinstance(tokenizer, Tokenizer) else open_tokenizer(tokenizer)
    if tok.token_to_id(PAD_TOKEN) != PAD_ID:
        raise TokenizerError(f"{PAD_TOKEN} has id {tok.token_to_id(PAD_TOKEN)}; it must have id {PAD_ID}")
    normalizer = _normalizer()
    classes: dict[str, int] = {}
    out = np.empty(tok.get_vocab_size(with_added_tokens=True), dtype=np.int32)
    for start in range(0, len(out), DECODE_BATCH):
        ids = range(start, min(start + DECODE_BATCH, len(out)))
        texts = tok.decode_batch([[token] for token in ids], skip_special_tokens=False)
        for token, text in zip(ids, texts, strict=True):
            key = (
                _raw(tok, token) if REPLACEMENT_CHARACTER in text else normalizer.normalize_str(text) or text
            )
            out[token] = classes.setdefault(key, len(classes))
    return torch.from_numpy(out)


def _raw(tokenizer: Tokenizer, token: int) -> str:
    """Vocabulary string of a token that is not valid UTF-8 on its own."""
    raw = tokenizer.id_to_token(token)
    if raw is None:
        raise TokenizerError(f"the tokenizer has no token of id {token}; ids must have no gaps")
    return raw


def _normalizer() -> normalizers.Normalizer:
    # A token that is one space must not be stripped to nothing: it travels through the strip in disguise.
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), LONE_SPACE_MARK),
            normalizers.Strip(),
            normalizers.Replace(LONE_SPACE_MARK, " "),
        ]
    )
