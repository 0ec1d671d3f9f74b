"""Headers of safetensors shards, read and held to the file they stand in.

Layout: 8 bytes little-endian header length, a JSON object, then the data; ``data_offsets`` count from the end
of the header (checkpoint spec, 5.8). The tensors' ranges must tile the data exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from di_model.problems import Problem, ProblemKind
from di_model.tensors import DTYPE_BYTES

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format."""
METADATA_KEY = "__metadata__"


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
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(LENGTH_BYTES)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < LENGTH_BYTES or LENGTH_BYTES + length > size:
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
        pairs = json.loads(blob, object_pairs_hook=_Pairs)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
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
    problems += _tiling(shard, sorted(entries.values(), key=lambda e: (e.begin, e.end)), data_bytes)
    return ShardHeader(entries, frozenset(faulty), tuple(problems))


def _entry(name: str, description: object) -> HeaderEntry | str:
    """The entry, or what is wrong with its description."""
    if not isinstance(description, _Pairs):
        return "description is not a JSON object"
    fields = dict(description)
    dtype, shape, offsets = (
        fields.get("dtype"),
        _counts(fields.get("shape")),
        _counts(fields.get("data_offsets")),
    )
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        return f"dtype {dtype!r}, known are {', '.join(DTYPE_BYTES)}"
    if shape is None:
        return f"shape {fields.get('shape')!r} is not a list of sizes"
    if offsets is None or len(offsets) != 2:
        return f"data_offsets {fields.get('data_offsets')!r} are not two offsets"
    begin, end = offsets
    expected = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - begin != expected:
        return f"bytes {begin}..{end} do not hold {expected} bytes of {dtype} {list(shape)}"
    return HeaderEntry(name, dtype, shape, begin, end)


def _counts(value: object) -> tuple[int, ...] | None:
    """A JSON list of non-negative integers."""
    valid = isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
    return tuple(value) if valid and isinstance(value, list) else None


def _tiling(shard: str, entries: Sequence[HeaderEntry], data_bytes: int) -> list[Problem]:
    """Overlaps, gaps, and ranges that do not end where the file does."""
    problems = []
    reached = 0
    for entry in entries:
        if entry.begin != reached:
            what = "overlaps the tensor before it" if entry.begin < reached else "leaves a gap before it"
            detail = f"begins at {entry.begin}, {what}, which ends at {reached}"
            problems.append(Problem(ProblemKind.BAD_HEADER, entry.name, f"in {shard}: {detail}"))
        if entry.end > data_bytes:
            detail = f"{entry.name} ends at byte {entry.end} of {data_bytes} bytes of data"
            problems.append(Problem(ProblemKind.TRUNCATED_SHARD, shard, detail))
        reached = max(reached, entry.end)
    if reached < data_bytes:
        detail = f"{data_bytes - reached} bytes after the last tensor"
        problems.append(Problem(ProblemKind.BAD_HEADER, shard, detail))
    return problems
