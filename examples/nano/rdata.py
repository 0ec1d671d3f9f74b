"""Reading string vectors from an R package's lazy-load database (``Rdata.rdx`` and ``Rdata.rdb``), without R.

The index is one compressed R object: a list of ``variables`` (name to offset and length in the database).
Each piece of the database is a big-endian length and one zlib stream that holds a serialised R object in XDR form.
Only the object types that data sets of text need are understood. Source: "R Internals", serialization formats.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

_NULL, _GLOBAL_FIELDS, _REFERENCE = 254, (242, 253), 255
_SYMBOL, _PAIRLIST, _STRING, _STRINGS, _LIST = 1, 2, 9, 16, 19
_LOGICALS, _INTEGERS = 10, 13  # stored alike
_HAS_ATTRIBUTES, _HAS_TAG = 1 << 9, 1 << 10
_MISSING_STRING = -1


class RDataError(ValueError):
    """A lazy-load database that this reader does not understand."""


def read_strings(directory: Path) -> dict[str, list[str]]:
    """Every variable of the data set under ``directory`` as its strings.

    Raises FileNotFoundError for an absent file, RDataError for a variable that is no string vector.
    """
    index = _Reader(_inflate((directory / "Rdata.rdx").read_bytes())).load()
    database = (directory / "Rdata.rdb").read_bytes()
    texts = {}
    for name, (offset, length) in index["variables"].items():
        piece = database[offset + 4 : offset + length]
        value = _Reader(_inflate(piece)).load()
        if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
            raise RDataError(f"{directory}: {name} is not a vector of strings")
        texts[name] = value
    return texts


def _inflate(data: bytes) -> bytes:
    return zlib.decompress(data, wbits=47)  # zlib and gzip headers alike


class _Reader:
    """A recursive reader of one serialised object."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.references: list[Any] = []

    def load(self) -> Any:
        if self.data[:2] != b"X\n":
            raise RDataError(f"starts with {self.data[:2]!r}; only the XDR form b'X\\n' is read")
        self.at = 2
        version = self.integer()
        self.at += 8  # the writing R and the oldest R that reads it
        if version == 3:  # carries the native encoding
            length = self.integer()
            self.at += length
        return self.item()

    def integer(self) -> int:
        (value,) = struct.unpack_from(">i", self.data, self.at)
        self.at += 4
        return int(value)

    def item(self) -> Any:
        flags = self.integer()
        kind = flags & 0xFF
        if kind == _NULL or kind in _GLOBAL_FIELDS:
            return None
        if kind == _REFERENCE:
            return self.references[(flags >> 8) - 1]
        if kind == _SYMBOL:
            self.references.append(self.item())
            return self.references[-1]
        if kind == _STRING:
            return self.string()
        if kind == _PAIRLIST:
            return self.pairs(flags)
        if kind in (_LOGICALS, _INTEGERS, _STRINGS, _LIST):
            return self.vector(kind, flags)
        raise RDataError(f"object type {kind} is not read")

    def string(self) -> str | None:
        length = self.integer()
        if length == _MISSING_STRING:
            return None
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8")

    def pairs(self, flags: int) -> dict[str, Any]:
        if flags & _HAS_ATTRIBUTES:
            self.item()
        tag = self.item() if flags & _HAS_TAG else ""
        head = {tag: self.item()}
        return head | (self.item() or {})

    def vector(self, kind: int, flags: int) -> Any:
        length = self.integer()
        if kind in (_LOGICALS, _INTEGERS):
            values = [self.integer() for _ in range(length)]
        else:
            values = [self.item() for _ in range(length)]
        attributes = self.item() if flags & _HAS_ATTRIBUTES else {}
        names = attributes.get("names")
        return values if names is None else dict(zip(names, values, strict=True))
