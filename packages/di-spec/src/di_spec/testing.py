"""A tokenizer for tests and examples, built on the spot. Nothing here is imported by the library itself."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from di_spec.detokenizer import byte_of_character

EOS = "<|end|>"
"""The special token of ``byte_tokenizer``; its id is 259."""


def byte_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer of 261 tokens.

    Token ``b`` of 0..255 is the byte ``b``; 256 and 257 are "ab" and "abc"; 258 is the first half of an emoji (no
    whole character); 259 is the special token ``EOS``; 260 is an added token with characters outside the byte
    alphabet.
    """
    vocab = byte_of_character()
    alphabet = {byte: character for character, byte in vocab.items()}
    first, second = (alphabet[byte] for byte in "😀".encode()[:2])
    merges = [("a", "b"), ("ab", "c"), (first, second)]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(EOS, special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<think é｜>", special=False, normalized=False)])
    return tokenizer
