"""Headers of safetensors shards, read and held to the file they stand in.

Layout: 8 bytes little-endian header length, a JSON object, then the data; ``data_offsets`` count from the end
of the header (checkpoint spec, 5.8). The tensors' ranges must tile the data exactly.
"""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from di_model.problems import Problem, ProblemKind
from di_model.tensors import DTYPE_BYTES

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format."""
METADATA_KEY = "__metadata__"
MAX_NUMBER = 2**63 - 1
"""Of a size or an offset."""
MAX_DIMENSIONS = 16


@dataclass(frozen=True, slots=True)
class HeaderEntry:
    """One tensor of a shard; ``begin``/``end`` are byte offsets into the shard's data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class ShardHeader:
    """The usable tensors of a shard by stored name, the names of unusable ones, and what is wrong."""

    entries: Mapping[str, HeaderEntry]
    faulty: frozenset[str] = frozenset()
    problems: tuple[Problem, ...] = ()
    readable: bool = True


def read_shard_header(path: Path) -> ShardHeader:
    """Reads and checks the header of one shard. Problems are returned, not raised."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its other end
            return _unusable(ProblemKind.UNREADABLE_SHARD, path, "not a regular file")
        size = status.st_size
        with path.open("rb") as file:
            prefix = file.read(LENGTH_BYTES)
            if len(prefix) < LENGTH_BYTES:
                detail = f"{size} bytes cannot hold the {LENGTH_BYTES} of a header's length"
                return _unusable(ProblemKind.TRUNCATED_SHARD, path, detail)
            length = int.from_bytes(prefix, "little")
            if LENGTH_BYTES + length > size:
                detail = f"{size} bytes cannot hold a header of {length} bytes"
                return _unusable(ProblemKind.TRUNCATED_SHARD, path, detail)
            if length > MAX_HEADER_BYTES:
                return _unusable(ProblemKind.BAD_HEADER, path, f"header of {length} bytes")
            blob = file.read(length)
    except FileNotFoundError:
        return _unusable(ProblemKind.MISSING_SHARD, path, "")
    except OSError as error:
        return _unusable(ProblemKind.UNREADABLE_SHARD, path, str(error))
    try:
        pairs = json.loads(blob.decode("utf-8"), object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        return _unusable(ProblemKind.BAD_HEADER, path, f"not JSON: {error}")
    if not isinstance(pairs, _Pairs):
        return _unusable(ProblemKind.BAD_HEADER, path, "not a JSON object")
    return _checked(path.name, pairs, size - LENGTH_BYTES - length)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as its pairs, so that a repeated name is seen."""


def _unusable(kind: ProblemKind, path: Path, detail: str) -> ShardHeader:
    return ShardHeader({}, problems=(Problem(kind, path.name, detail),), readable=False)


def _checked(shard: str, pairs: _Pairs, data_bytes: int) -> ShardHeader:
    entries: dict[str, HeaderEntry] = {}
    problems: list[Problem] = []
    faulty: set[str] = set()
    for name, description in pairs:
        if name == METADATA_KEY:
            continue
        if name in entries:
            problems.append(Problem(ProblemKind.DUPLICATE, name, f"twice in the header of {shard}"))
            continue
        entry = _entry(name, description)
        if isinstance(entry, str):
            problems.append(Problem(ProblemKind.BAD_HEADER, name, f"in {shard}: {entry}"))
            faulty.add(name)
        else:
            entries[name] = entry
    ordered = sorted(entries.values(), key=lambda e: (e.begin, e.end))
    problems += _overlaps(shard, ordered)
    if not faulty:  # where their bytes lie is not known
        problems += _gaps(shard, ordered, data_bytes)
    problems += _truncation(shard, ordered, data_bytes)
    return ShardHeader(entries, frozenset(faulty), tuple(problems))


def _entry(name: str, description: object) -> HeaderEntry | str:
    """The entry, or what is wrong with its description."""
    if not isinstance(description, _Pairs):
        return "description is not a JSON object"
    fields = dict(description)
    if len(fields) < len(description):
        return "a key of its description is named twice"
    dtype, shape, offsets = (
        fields.get("dtype"),
        _counts(fields.get("shape")),
        _counts(fields.get("data_offsets")),
    )
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        return f"dtype {dtype!r}, known are {', '.join(DTYPE_BYTES)}"
    if shape is None or len(shape) > MAX_DIMENSIONS:
        return f"shape {fields.get('shape')!r} is not a list of sizes, at most {MAX_DIMENSIONS}"
    if offsets is None or len(offsets) != 2:
        return f"data_offsets {fields.get('data_offsets')!r} are not two offsets"
    begin, end = offsets
    expected = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - begin != expected:
        return f"bytes {begin}..{end} do not hold {expected} bytes of {dtype} {list(shape)}"
    return HeaderEntry(name, dtype, shape, begin, end)


def _counts(value: object) -> tuple[int, ...] | None:
    """A JSON list of integers from 0 to ``MAX_NUMBER``."""
    valid = isinstance(value, list) and all(type(item) is int and 0 <= item <= MAX_NUMBER for item in value)
    return tuple(value) if valid and isinstance(value, list) else None


def _overlaps(shard: str, entries: Sequence[HeaderEntry]) -> Iterator[Problem]:
    reached = 0
    for entry in entries:
        if entry.begin < reached:
            detail = f"begins at {entry.begin}, overlaps the tensor before it, which ends at {reached}"
            yield Problem(ProblemKind.BAD_HEADER, entry.name, f"in {shard}: {detail}")
        reached = max(reached, entry.end)


def _gaps(shard: str, entries: Sequence[HeaderEntry], data_bytes: int) -> Iterator[Problem]:
    """Bytes between tensors, or behind the last one, that belong to none."""
    reached = 0
    for entry in entries:
        if entry.begin > reached:
            detail = f"begins at {entry.begin}, leaves a gap before it, from byte {reached} on"
            yield Problem(ProblemKind.BAD_HEADER, entry.name, f"in {shard}: {detail}")
        reached = max(reached, entry.end)
    if reached < data_bytes:
        detail = f"{data_bytes - reached} bytes after the last tensor"
        yield Problem(ProblemKind.BAD_HEADER, shard, detail)


def _truncation(shard: str, entries: Sequence[HeaderEntry], data_bytes: int) -> Iterator[Problem]:
    """One problem for all tensors that end behind the file."""
    lost = [entry for entry in entries if entry.end > data_bytes]
    if lost:
        last = max(lost, key=lambda entry: entry.end)
        others = f"; {len(lost) - 1} more end behind them" if len(lost) > 1 else ""
        detail = f"{last.name} ends at byte {last.end} of {data_bytes} bytes of data{others}"
        yield Problem(ProblemKind.TRUNCATED_SHARD, shard, detail)
