"""The tokenizer of a checkpoint: ``tokenizer.json`` alone, with the release's policy checks.

``tokenizer_config.json`` is not needed, and no code of the checkpoint runs. Prompts are encoded as they are:
whoever renders the prompt writes BOS, as the release's encoder does. Source: checkpoint spec, section 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken
from tokenizers import Tokenizer as RawTokenizer

from di_model.config import ModelConfig

TOKENIZER_FILE = "tokenizer.json"
BOS_TOKEN, BOS_ID = "<｜begin▁of▁sentence｜>", 0
EOS_TOKEN, EOS_ID = "<｜end▁of▁sentence｜>", 1
PAD_TOKEN, PAD_ID = "<｜▁pad▁｜>", 2
IMAGE_TOKENS = ("<image>", "<｜deepseek_image｜>")
"""Names of the image placeholder; the first one that the vocabulary has is it."""
NUM_IMAGE_PLACEHOLDERS = 21


class TokenizerError(ValueError):
    """A tokenizer that cannot serve the model; the message names what was found and what is needed."""


def open_tokenizer(path: str | Path) -> RawTokenizer:
    """Opens ``tokenizer.json``, given the file or its directory, with its vocabulary and its rules unchanged.

    Truncation and padding, which such a file can switch on for all callers, are switched off: they would cut
    prompts or put padding into them without a word.

    Raises FileNotFoundError when there is none, TokenizerError when it is not a tokenizer.
    """
    file = Path(path)
    file = file / TOKENIZER_FILE if file.is_dir() else file
    if not file.is_file():
        raise FileNotFoundError(f"no tokenizer at {file}")
    try:
        raw = RawTokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception for every kind of malformed file
        raise TokenizerError(f"{file} is not a tokenizer: {error}") from error
    raw.no_truncation()
    raw.no_padding()
    return raw


class Tokenizer:
    """Text to token ids and back, for the model of one configuration."""

    def __init__(self, raw: RawTokenizer, config: ModelConfig) -> None:
        """Wraps an opened tokenizer; under ``tokenizer_compatibility`` "release" its special tokens are checked.

        Raises TokenizerError for the first rule that it breaks.
        """
        self._raw = raw
        self._vocab_size = config.text.vocab_size
        self.bos_token_id = config.bos_token_id
        self.eos_token_id = config.eos_token_id
        self.pad_token_id = config.pad_token_id
        _check_size(raw, config)
        if config.tokenizer_compatibility == "release":
            # A configuration may name EOS as the padding token; the release then pads with PAD all the same.
            self.pad_token_id = PAD_ID
            _check_release_policy(raw, config)
            _check_image_placeholders(raw, config.text.vocab_size)

    @staticmethod
    def from_file(path: str | Path, config: ModelConfig) -> Tokenizer:
        """Opens the tokenizer at ``path`` (file or directory) for a model."""
        return Tokenizer(open_tokenizer(path), config)

    @property
    def raw(self) -> RawTokenizer:
        """The tokenizer as the library has it."""
        return self._raw

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding: ids ``0..vocab_size-1`` may stand in a prompt."""
        return self._vocab_size

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        """Token ids of ``text``; protocol tokens spelled out in it become their ids. BOS only on request."""
        ids: list[int] = self._raw.encode(text, add_special_tokens=False).ids
        return [self.bos_token_id, *ids] if add_bos else ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ``ids``. Bytes that are no valid UTF-8, such as half a character, appear as U+FFFD."""
        return self._raw.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str | None:
        """Vocabulary string of one id; None for an id without a token."""
        return self._raw.id_to_token(token_id)

    def token_id(self, token: str) -> int | None:
        """Id of a vocabulary string; None when there is none."""
        return self._raw.token_to_id(token)


def _check_size(raw: RawTokenizer, config: ModelConfig) -> None:
    """Every id that encoding can produce has an embedding row; placeholders of images are no text."""
    vocabulary = raw.get_vocab(with_added_tokens=True)
    allowed = set(image_placeholders())
    token, highest = max(
        ((t, i) for t, i in vocabulary.items() if t not in allowed),
        key=lambda pair: pair[1],
        default=("", -1),
    )
    if highest >= config.text.vocab_size:
        raise TokenizerError(f"{token!r} has id {highest}; the model has ids 0..{config.text.vocab_size - 1}")


def _check_release_policy(raw: RawTokenizer, config: ModelConfig) -> None:
    wanted = (
        ("BOS", BOS_TOKEN, BOS_ID, config.bos_token_id),
        ("EOS", EOS_TOKEN, EOS_ID, config.eos_token_id),
        ("padding", PAD_TOKEN, PAD_ID, config.pad_token_id),
    )
    for role, token, required, configured in wanted:
        found = raw.token_to_id(token)
        if found != required:
            raise TokenizerError(f"{role} token {token} has id {found}; it must have id {required}")
        if configured != required and not (role == "padding" and configured == EOS_ID):
            raise TokenizerError(f"configured {role} id is {configured}; it must be {required} ({token})")
    for token in IMAGE_TOKENS:
        found = raw.token_to_id(token)
        if found is not None and found != config.image_token_id:
            raise TokenizerError(f"image token {token} has id {found}; configured is {config.image_token_id}")
        if found is not None:
            break
    encoded = raw.encode("", add_special_tokens=True).ids
    if encoded and encoded[-1] == EOS_ID:
        raise TokenizerError("the tokenizer appends EOS; it must not")


def image_placeholders() -> tuple[str, ...]:
    """Names of the placeholder tokens that may follow the vocabulary."""
    return tuple(f"<|place_holder_mm_span_{i:04}|>" for i in range(NUM_IMAGE_PLACEHOLDERS))


def _check_image_placeholders(raw: RawTokenizer, vocab_size: int) -> None:
    """Placeholders that are present stand right after the vocabulary; a text engine needs none of them."""
    for position, token in enumerate(image_placeholders()):
        found = raw.token_to_id(token)
        if found is not None and found != vocab_size + position:
            raise TokenizerError(f"{token} has id {found}; it must have id {vocab_size + position}")


def add_image_placeholders(raw: RawTokenizer, vocab_size: int) -> None:
    """Appends the placeholders that are missing, so that internal image ids decode to something.

    Raises TokenizerError when they would not get the ids from ``vocab_size`` on.
    """
    raw.add_special_tokens([AddedToken(token, special=True) for token in image_placeholders()])
    _check_image_placeholders(raw, vocab_size)
