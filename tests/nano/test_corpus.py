"""The corpus readers, on the real packages where they are unpacked and on small inputs everywhere."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from examples.nano.corpus import (
    HELD_OUT_DOCUMENTS,
    HELD_OUT_NOVEL,
    CorpusMissingError,
    dictionary,
    read_corpus,
)
from examples.nano.rdata import RDataError, read_strings

UNPACKED = Path(__file__).resolve().parents[2] / ".cache" / "nano" / "debian"
needs_packages = pytest.mark.skipif(
    not UNPACKED.is_dir(), reason="the corpus packages are not unpacked (examples/nano/fetch.sh)"
)


@needs_packages
def test_held_out_text_is_whole_sources_apart() -> None:
    corpus = read_corpus(UNPACKED)
    held_out = {document.source for document in corpus.held_out}
    assert held_out == {HELD_OUT_NOVEL, *HELD_OUT_DOCUMENTS}
    assert held_out.isdisjoint(document.source for document in corpus.training)
    sizes = {document.source: len(document.text) for document in (*corpus.training, *corpus.held_out)}
    assert sum(sizes.values()) > 25_000_000
    assert sizes["prideprejudice"] > 600_000
    novel = next(document.text for document in corpus.held_out if document.source == HELD_OUT_NOVEL)
    assert "Sir Walter Elliot, of Kellynch Hall, in Somersetshire" in novel


@needs_packages
def test_no_text_carries_markup_of_its_file_format() -> None:
    for document in read_corpus(UNPACKED).training:
        if document.source.startswith("web/"):
            assert "<w " not in document.text
            assert "strong:" not in document.text


@needs_packages
def test_dictionary_is_of_frequent_words_with_short_definitions() -> None:
    entries = dictionary(UNPACKED, 500)
    assert len({entry.word for entry in entries}) == 500
    assert all(8 <= len(entry.gloss) <= 90 and '"' not in entry.gloss[:1] for entry in entries)
    assert ("time", "noun") in {(entry.word, entry.part_of_speech) for entry in entries}


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusMissingError, match="r-cran-janeaustenr"):
        read_corpus(tmp_path)


def _serialised(item: bytes) -> bytes:
    return b"X\n" + struct.pack(">3i", 2, 0, 0) + item


def _strings(*texts: str, attributes: bytes = b"") -> bytes:
    parts = [struct.pack(">2i", 9, len(text.encode())) + text.encode() for text in texts]
    return struct.pack(">2i", 16 | (0x200 if attributes else 0), len(texts)) + b"".join(parts) + attributes


def _named_list(names: list[str], *items: bytes) -> bytes:
    symbol = struct.pack(">3i", 1, 9, 5) + b"names"
    attributes = struct.pack(">i", 2 | 0x400) + symbol + _strings(*names) + struct.pack(">i", 254)
    return struct.pack(">2i", 19 | 0x200, len(items)) + b"".join(items) + attributes


def _data_set(directory: Path, content: bytes) -> Path:
    """A data set of one variable ``verse`` with the serialised ``content``."""
    compressed = zlib.compress(_serialised(content))
    piece = struct.pack(">i", len(content)) + compressed
    place = struct.pack(">4i", 13, 2, 0, len(piece))
    # A symbol that stands twice is written once: the second list refers to it.
    index = _named_list(["variables"], _named_list(["verse"], place))
    inner = index.index(struct.pack(">3i", 1, 9, 5))
    head, tail = index[: inner + 17], index[inner + 17 :]
    index = head + tail.replace(struct.pack(">3i", 1, 9, 5) + b"names", struct.pack(">i", 255 | 1 << 8))
    (directory / "Rdata.rdx").write_bytes(zlib.compress(_serialised(index)))
    (directory / "Rdata.rdb").write_bytes(piece)
    return directory


def test_strings_of_a_lazy_load_database(tmp_path: Path) -> None:
    directory = _data_set(tmp_path, _strings("The quick", "brown ƒox", ""))
    assert read_strings(directory) == {"verse": ["The quick", "brown ƒox", ""]}


def test_other_variables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RDataError, match="verse is not a vector of strings"):
        read_strings(_data_set(tmp_path, struct.pack(">3i", 13, 1, 7)))
    with pytest.raises(RDataError, match="object type 24"):
        read_strings(_data_set(tmp_path, struct.pack(">2i", 24, 0)))
