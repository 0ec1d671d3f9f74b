"""Token ids to text, piece by piece, without ever showing half a character."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel

_LONGEST_PARTIAL = 3  # bytes of a UTF-8 character that can be waiting for its last byte


class UnsupportedTokenizerError(ValueError):
    """The tokenizer does not map tokens to bytes, so its text cannot be produced token by token."""


class TokenBytes:
    """The bytes behind each token of a byte-level BPE tokenizer. One per tokenizer, shared by all requests.

    A vocabulary entry spells one byte per character (the GPT-2 table). An entry with a character outside that
    table is literal text, which is how ``tokenizers`` treats added tokens too.

    Raises UnsupportedTokenizerError unless the tokenizer's decoder is ``ByteLevel``.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        if not isinstance(tokenizer.decoder, ByteLevel):
            raise UnsupportedTokenizerError(
                f"tokenizer.decoder: got {type(tokenizer.decoder).__name__}, allowed: ByteLevel"
            )
        self._tokenizer = tokenizer
        self._byte_of_character = byte_of_character()
        self._special = {
            token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special
        }
        self._cache: dict[int, bytes] = {}
        self._texts: tuple[dict[int, str], dict[int, str]] = ({}, {})

    def is_special(self, token_id: int) -> bool:
        """Whether the tokenizer marks the token as special (a protocol token, not text)."""
        return token_id in self._special

    def texts(self, *, skip_special_tokens: bool) -> dict[int, str]:
        """What tokens add to a text that they leave, as they found it, without half a character at its end: the same
        wherever they stand. Filled by those who find out."""
        return self._texts[skip_special_tokens]

    def __getitem__(self, token_id: int) -> bytes:
        """Return the bytes of a token; empty for an id that the tokenizer does not know."""
        value = self._cache.get(token_id)
        if value is None:
            value = self._cache[token_id] = self._spell(token_id)
        return value

    def _spell(self, token_id: int) -> bytes:
        token: str | None = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        try:
            return bytes(self._byte_of_character[character] for character in token)
        except KeyError:
            return token.encode()


class IncrementalDetokenizer:
    """Turns one request's tokens into text deltas; each token costs its own bytes only.

    Bytes that begin a character are held until it is complete. Bytes that can no longer become a character
    turn into U+FFFD as soon as that is certain, by the same rule as a decode of the whole sequence, so that
    joined deltas equal ``tokenizer.decode(output_ids)``. If the prompt ends inside a character that the output
    completes, the first delta is that character; one that it does not complete is the prompt's alone, and no
    U+FFFD is shown for it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | TokenBytes,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
    ) -> None:
        self._table = tokenizer if isinstance(tokenizer, TokenBytes) else TokenBytes(tokenizer)
        self._skip_special = skip_special_tokens
        self._texts = self._table.texts(skip_special_tokens=skip_special_tokens)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decoder.decode(self._tail(prompt_ids))
        begun = self._decoder.getstate()[0]
        self._is_open = bool(begun)
        self._unfinished = begun.decode(errors="replace")  # how the prompt's last character looks by itself

    def append(self, ids: Iterable[int]) -> str:
        """Take the next tokens and return the text that is now certain."""
        return "".join(map(self.push, ids))

    def push(self, token_id: int) -> str:
        """Take the next token and return the text that is now certain."""
        was_open = self._is_open
        if not was_open and (known := self._texts.get(token_id)) is not None:
            return known
        text = self._own(self._decoder.decode(self.token_bytes(token_id)))
        self._is_open = bool(self._decoder.getstate()[0])
        if not was_open and not self._is_open:
            self._texts[token_id] = text
        return text

    def flush(self) -> str:
        """End of the stream: a character left incomplete becomes U+FFFD."""
        return self._own(self._decoder.decode(b"", final=True))

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes this token adds to the text: empty for a special token that is left out."""
        if self._skip_special and self._table.is_special(token_id):
            return b""
        return self._table[token_id]

    def _own(self, text: str) -> str:
        """``text`` without what stands for the prompt's unfinished character."""
        if not (self._unfinished and text):
            return text
        own, self._unfinished = text.removeprefix(self._unfinished), ""
        return own

    def _tail(self, prompt_ids: Sequence[int]) -> bytes:
        """The prompt's last bytes, enough for an unfinished character (UTF-8 finds its own boundaries)."""
        tail = b""
        for index in range(len(prompt_ids) - 1, -1, -1):
            if len(tail) >= _LONGEST_PARTIAL:
                break
            tail = self.token_bytes(prompt_ids[index]) + tail
        return tail


def byte_of_character() -> dict[str, int]:
    """The GPT-2 byte alphabet: printable Latin-1 is itself, the other bytes are U+0100 onwards, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
