"""Digests of what a checkpoint's shards hold, remembered for files that have not changed."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from di_model.checkpoint import Checkpoint
from di_model.mapped_file import FileIdentity
from di_model.plan import PlannedTensor
from di_model.shard_header import read_shard_header
from di_model.tensors import Part
from di_model.whole_file import whole_file

_CHUNK = 8 << 20
_ENTRY = len(dataclasses.fields(FileIdentity)) + 1
_MOST_RECORD = 64 << 20
"""Bytes of a record that are read: those of some 200,000 shards. A longer one is cut off, and then no JSON."""


def content_digest(checkpoint: Checkpoint, record: Path) -> str:
    """SHA-256 over the bytes of every tensor but the Engram tables, which are read by rows where they lie.

    Args:
        checkpoint: whose files are read.
        record: file of the digests of shards by path and :class:`~di_model.mapped_file.FileIdentity`: what has not
            changed is not read again. An unreadable record is written anew; one that cannot be written is done without.

    Raises:
        FileChangedError: a shard is not the file any more that ``checkpoint`` has mapped.
    """
    known = _read_record(record)
    found: dict[str, list[object]] = {}
    total = hashlib.sha256()
    for shard, tensors in sorted(checkpoint.plan.shards.items()):
        path = (checkpoint.path / shard).resolve()
        mapped = checkpoint.files[shard]
        mapped.check(path)
        identity = dataclasses.astuple(mapped)
        entry = known.get(str(path))
        if entry is None or tuple(entry[:-1]) != identity:
            entry = [*identity, _shard_digest(path, tensors, mapped)]
            found[str(path)] = entry
        total.update(f"{entry[-1]}\n".encode())
    if found:
        with contextlib.suppress(OSError):  # a directory that can only be read may hold the file all the same
            _write_record(record, {**known, **found})
    return total.hexdigest()


def _shard_digest(path: Path, tensors: Iterable[PlannedTensor], mapped: FileIdentity) -> str:
    """Names, types and bytes of all tensors of one shard but Engram tables, in the order of the names.

    All, whether or not the model at hand uses them: the digest is remembered for every model of these files.
    """
    tables = {tensor.stored_name for tensor in tensors if tensor.spec.part is Part.ENGRAM_TABLE}
    digest = hashlib.sha256()
    with path.open("rb") as file:
        header = read_shard_header(path)
        mapped.check(path)  # the header is that of the mapped file
        start = mapped.size - max(entry.end for entry in header.entries.values())
        for name, entry in sorted(header.entries.items()):
            if name in tables:
                continue
            digest.update(f"{name} {entry.dtype} {entry.shape}\n".encode())
            file.seek(start + entry.begin)
            left = entry.end - entry.begin
            while left:
                chunk = file.read(min(left, _CHUNK))
                if not chunk:
                    raise OSError(f"{path} ends within {name}")
                digest.update(chunk)
                left -= len(chunk)
        mapped.check(path, file.fileno())  # and so are the bytes
    return digest.hexdigest()


def _read_record(record: Path) -> dict[str, list[object]]:
    try:
        entries = json.loads(_read_file(record))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(entries, dict):
        return {}
    return {
        name: entry
        for name, entry in entries.items()
        if isinstance(entry, list) and len(entry) == _ENTRY and isinstance(entry[-1], str)
    }


def open_at_once(path: str, flags: int) -> int:
    """Opener of a file: a pipe of that name would wait for its other end."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


def _read_file(path: Path) -> bytes:
    """The contents of a regular file, up to :data:`_MOST_RECORD` bytes. Anything else is an OSError: a device may never
    end."""
    with open(path, "rb", opener=open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(None, "no regular file", str(path))
        return file.read(_MOST_RECORD)


def _write_record(record: Path, entries: dict[str, list[object]]) -> None:
    """Replaced as a whole: of two processes that write, one wins, and what is lost is read again."""
    with whole_file(record) as file:
        file.write(json.dumps(entries).encode())
