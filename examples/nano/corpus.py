"""The training text: four Debian packages read where they lie, split by source into training and held-out text.

Nothing is fetched here. ``fetch.sh`` unpacks the packages; licences are listed in NOTICE.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from examples.nano.rdata import read_strings

PACKAGES = ("r-cran-janeaustenr", "python3.11-doc", "wordnet-base", "sword-text-web")
"""Debian packages that the corpus comes from."""
HELD_OUT_NOVEL = "persuasion"
HELD_OUT_DOCUMENTS = (
    "howto/functional.rst.txt",
    "howto/sorting.rst.txt",
    "library/statistics.rst.txt",
    "library/textwrap.rst.txt",
    "tutorial/classes.rst.txt",
)
"""Files of the documentation that no training text contains."""

_AUSTEN = "usr/lib/R/site-library/janeaustenr/data"
_PYTHON = "usr/share/doc/python3.11/html/_sources"
_WORDNET = "usr/share/wordnet"
_BIBLE = "usr/share/sword/modules/texts/ztext/engWEB2015eb"
_PART_OF_SPEECH = {1: "noun", 2: "verb", 3: "adj", 4: "adv", 5: "adj"}
_ZTEXT_BLOCK = struct.Struct("<III")  # offset, compressed bytes, plain bytes


class CorpusMissingError(FileNotFoundError):
    """A package of the corpus is not unpacked under the given root."""


@dataclass(frozen=True)
class Document:
    """One source text: a novel, a file, a book or the dictionary."""

    source: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """All documents, training and held out; no document is in both."""

    training: tuple[Document, ...]
    held_out: tuple[Document, ...]


@dataclass(frozen=True)
class Entry:
    """A word, its part of speech and the definition of its most frequent meaning."""

    word: str
    part_of_speech: str
    gloss: str


def read_corpus(root: Path) -> Corpus:
    """Reads every document below ``root`` (a directory that packages are unpacked in, or ``/``).

    Raises CorpusMissingError naming the package and the path that is absent.
    """
    documents = [*novels(root), *documentation(root), *bible(root), *glosses(root)]
    held_out = {HELD_OUT_NOVEL, *HELD_OUT_DOCUMENTS}
    return Corpus(
        training=tuple(document for document in documents if document.source not in held_out),
        held_out=tuple(document for document in documents if document.source in held_out),
    )


def novels(root: Path) -> Iterator[Document]:
    """The six novels of Jane Austen, paragraphs of wrapped lines joined."""
    for name, lines in read_strings(_require(root, _AUSTEN, "r-cran-janeaustenr")).items():
        paragraphs = re.split(r"\n\s*\n", "\n".join(lines))
        yield Document(name, "\n\n".join(" ".join(p.split()) for p in paragraphs if p.strip()) + "\n")


def documentation(root: Path) -> Iterator[Document]:
    """The reST sources of Python's documentation, as they are, in order of their paths."""
    folder = _require(root, _PYTHON, "python3.11-doc")
    for path in sorted(folder.rglob("*.rst.txt")):
        yield Document(path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8"))


def bible(root: Path) -> Iterator[Document]:
    """The books of the World English Bible as plain text (SWORD's zText: zlib blocks, one a book)."""
    folder = _require(root, _BIBLE, "sword-text-web")
    for testament in ("ot", "nt"):
        index = (folder / f"{testament}.bzs").read_bytes()
        data = (folder / f"{testament}.bzz").read_bytes()
        for number, (offset, length, _) in enumerate(_ZTEXT_BLOCK.iter_unpack(index)):
            text = _plain(zlib.decompress(data[offset : offset + length]).decode("utf-8"))
            if text:
                yield Document(f"web/{testament}/{number}", text + "\n")


def _plain(osis: str) -> str:
    """Text of OSIS markup without notes, headings and tags; paragraphs become lines."""
    osis = re.sub(r"<(note|title)\b[^>]*>.*?</\1>", " ", osis, flags=re.DOTALL)
    osis = re.sub(r'<div[^>]*type="x-p"[^>]*/>|<chapter[^>]*sID[^>]*/>', "\n", osis)
    text = re.sub(r"<[^>]+>", "", osis)
    for name, character in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&apos;", "'"), ("&amp;", "&")):
        text = text.replace(name, character)
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(line for line in lines if line)


def glosses(root: Path) -> Iterator[Document]:
    """WordNet's definitions as lines ``word, word: definition``, one document a part of speech."""
    folder = _require(root, _WORDNET, "wordnet-base")
    for part in ("noun", "verb", "adj", "adv"):
        lines = [f"{', '.join(words)}: {gloss}" for words, gloss in _synsets(folder, part).values()]
        yield Document(f"wordnet/{part}", "\n".join(lines) + "\n")


def dictionary(root: Path, count: int) -> list[Entry]:
    """The ``count`` most frequent words of WordNet's tagged texts with a short definition, by frequency.

    A word is asked for in its most frequent meaning; words of fewer than three letters, phrases and definitions
    longer than ``90`` characters are left out.
    """
    folder = _require(root, _WORDNET, "wordnet-base")
    frequency = _sense_counts(folder)
    synsets = {part: _synsets(folder, part) for part in ("noun", "verb", "adj", "adv")}
    best: dict[str, tuple[int, str]] = {}
    for (word, part), times in frequency.items():
        if times > best.get(word, (0, ""))[0]:
            best[word] = (times, part)
    senses = {part: _first_senses(folder, part) for part in synsets}
    entries = []
    for word, (_, part) in sorted(best.items(), key=lambda item: (-item[1][0], item[0])):
        offset = senses[part].get(word)
        if offset is None or not word.isascii() or not word.isalpha() or len(word) < 3:
            continue
        gloss = re.sub(r"^\([^)]*\)\s*", "", synsets[part][offset][1].split("; ")[0])
        if 8 <= len(gloss) <= 90:
            entries.append(Entry(word, part, gloss))
    return entries[:count]


def _synsets(folder: Path, part: str) -> dict[str, tuple[list[str], str]]:
    """Words and definition (without examples) by offset, in the order of the file."""
    found = {}
    for line in (folder / f"data.{part}").read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):  # the licence
            continue
        data, _, gloss = line.partition(" | ")
        fields = data.split(" ")
        words = [fields[4 + 2 * i].replace("_", " ") for i in range(int(fields[3], 16))]
        definition = "; ".join(p.strip() for p in gloss.split("; ") if not p.strip().startswith('"'))
        found[fields[0]] = ([re.sub(r"\([a-z]+\)$", "", word) for word in words], definition.strip())
    return found


def _first_senses(folder: Path, part: str) -> dict[str, str]:
    """Offset of the most frequent meaning of each word."""
    found = {}
    for line in (folder / f"index.{part}").read_text(encoding="utf-8").splitlines():
        if not line.startswith("  "):
            fields = line.split()
            found[fields[0]] = fields[-int(fields[2])]
    return found


def _sense_counts(folder: Path) -> dict[tuple[str, str], int]:
    """How often each word and part of speech was tagged."""
    counts: dict[tuple[str, str], int] = {}
    for line in (folder / "cntlist.rev").read_text(encoding="utf-8").splitlines():
        key, _, times = line.split(" ")
        word, _, sense = key.partition("%")
        index = (word, _PART_OF_SPEECH[int(sense[0])])
        counts[index] = counts.get(index, 0) + int(times)
    return counts


def _require(root: Path, path: str, package: str) -> Path:
    if not (root / path).is_dir():
        raise CorpusMissingError(
            f"{root / path} does not exist; it comes with the Debian package {package}: "
            "run examples/nano/fetch.sh, or install the package and give --root /"
        )
    return root / path
