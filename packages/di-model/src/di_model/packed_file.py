"""The cache file of packed weights, named by what is in it.

Layout: 8 bytes magic, 8 bytes length of the header (little-endian), 32 bytes SHA-256 of the header, the header (JSON),
zeros up to a page, then the packed matrices at multiples of 64 bytes. The header holds the key, the size of the file
and every matrix with its place. A file whose size or header is not what it must be for the checkpoint is written anew.
The matrices themselves are not read again for damage, which would cost what the file saves: deleting the file makes it
anew. Nothing here deletes one (:mod:`di_model.packed_cache` does).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from di_kernels.memory import allocate
from di_kernels.ops.linear import LinearWeight
from di_kernels.packing import LAYOUT_VERSION, pack, packed_from, packed_shape

from di_model.checkpoint import Checkpoint
from di_model.content import content_digest, open_at_once
from di_model.mapped_file import map_file
from di_model.weight_tree import matrices, replace_matrices
from di_model.weights import ModelWeights
from di_model.whole_file import whole_file

MAGIC = b"DIPACK\x00\x01"
_PAGE = 4096
_START = 48
"""Bytes in front of the header."""
LOCK_SUFFIX = ".lock"
LOCK_SECONDS = 3600.0
"""How long one process waits for another that is writing the file."""


class PackedFileError(OSError):
    """The cache file of packed weights cannot be used: no room, no permission, another process holds it, or a shard of
    the checkpoint was replaced after it was opened."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a packed matrix lies in the file."""

    name: str
    format: str
    rows: int
    columns: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What the file says of itself, except its digest."""

    key: str
    size: int
    places: tuple[Place, ...]

    def encode(self) -> bytes:
        """JSON, the same for the same contents."""
        places = [[p.name, p.format, p.rows, p.columns, p.offset, p.nbytes] for p in self.places]
        return json.dumps({"key": self.key, "size": self.size, "matrices": places}).encode()


def packed_file(checkpoint: Checkpoint, directory: Path) -> ModelWeights:
    """The weights of ``checkpoint`` from their cache file in ``directory``, which is written first if it is missing.

    Raises:
        PackedFileError: the file can neither be read nor written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        key = _key(checkpoint, directory)
        path = directory / f"{key[:32]}.packed"
        lock = path.with_suffix(LOCK_SUFFIX)
        header = _header(key, checkpoint.weights)
        if not _agrees(path, header):
            with writer_lock(lock, LOCK_SECONDS):
                if not _agrees(path, header):  # another process may have written it in the meantime
                    _record(lock, checkpoint)
                    _write(path, header, checkpoint)
        with contextlib.suppress(OSError):  # where this user may not write, the time of the last one stays
            if lock.exists():
                os.utime(lock)
            else:
                _record(lock, checkpoint)
        return _mapped(path, header, checkpoint.weights)
    except PackedFileError:
        raise
    except OSError as error:
        raise PackedFileError(
            error.errno, f"packed weights in {directory}: {error.strerror or error}"
        ) from error


def _record(lock: Path, checkpoint: Checkpoint) -> None:
    """Says what was packed; the time of the file says when it was last used."""
    lock.write_text(f"{checkpoint.path.resolve()}\n", encoding="utf-8", errors="replace")


def _key(checkpoint: Checkpoint, directory: Path) -> str:
    digest = hashlib.sha256(f"layout {LAYOUT_VERSION}\n".encode())
    for name, matrix in matrices(checkpoint.weights):
        digest.update(f"{name} {matrix.format.name} {matrix.shape}\n".encode())
    digest.update(content_digest(checkpoint, directory / "digests.json").encode())
    return digest.hexdigest()


def _header(key: str, weights: ModelWeights) -> Header:
    """The header of a file of ``weights``; offsets count from the end of the header's pages."""
    places, offset = [], 0
    for name, matrix in matrices(weights):
        groups, width = packed_shape(matrix.format, *matrix.shape)
        places.append(Place(name, matrix.format.name, *matrix.shape, offset, groups * width))
        offset += groups * width
    return Header(key, offset, tuple(places))


def _prefix(header: Header) -> bytes:
    """Everything in front of the matrices."""
    text = header.encode()
    prefix = MAGIC + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text
    return prefix + bytes(-len(prefix) % _PAGE)


def _agrees(path: Path, header: Header) -> bool:
    """Whether the file is whole and holds just what ``header`` says."""
    expected = _prefix(header)
    try:
        if path.stat().st_size != len(expected) + header.size:
            return False
        with path.open("rb") as file:
            return file.read(len(expected)) == expected
    except FileNotFoundError:
        return False


def _write(path: Path, header: Header, checkpoint: Checkpoint) -> None:
    """Writes the file under another name and renames it once it is on disk; what fails leaves nothing behind.

    What a killed process has left is removed: call it under the lock.
    """
    for left in path.parent.glob(f"{path.stem}.*.part"):
        left.unlink(missing_ok=True)
    with whole_file(path) as file:
        prefix = _prefix(header)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, len(prefix) + header.size)  # no room: known at once
        file.write(prefix)
        memory = allocate(max((place.nbytes for place in header.places), default=0))
        for place, (_, matrix) in zip(header.places, matrices(checkpoint.weights), strict=True):
            packed = pack(matrix, memory[: place.nbytes])
            file.write(packed.data.flatten().numpy().data)
        file.flush()
        os.fsync(file.fileno())
        checkpoint.check_files()  # one that was changed in place while it was packed is not what its digest says
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    number = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _mapped(path: Path, header: Header, weights: ModelWeights) -> ModelWeights:
    data = map_file(path)[0][len(_prefix(header)) :]
    if data.numel() != header.size:
        raise PackedFileError(None, f"{path} has changed while it was opened")
    places = {place.name: place for place in header.places}

    def packed(name: str, matrix: LinearWeight) -> LinearWeight:
        place = places[name]
        part = (
            data[place.offset : place.offset + place.nbytes]
            if place.nbytes
            else torch.empty(0, dtype=torch.uint8)
        )
        return packed_from(part, matrix.format, place.rows, place.columns)

    return replace_matrices(weights, packed)


@contextlib.contextmanager
def writer_lock(path: Path, seconds: float) -> Iterator[None]:
    """Held by one process at a time; it ends with the process that held it.

    The file says which checkpoint was packed, and its time is that of the last use. Who holds it may remove it as the
    last thing.

    Raises:
        PackedFileError: another process has held it for so many seconds.
    """
    deadline = time.monotonic() + seconds
    while True:
        with open(path, "ab", opener=open_at_once) as file:
            while not _try_lock(file):
                if time.monotonic() > deadline:
                    message = f"another process has held {path} for {seconds:.0f} s"
                    raise PackedFileError(None, message)
                time.sleep(0.05)
            if _is_at(path, file):  # else who held it has removed it, and there may be another one
                yield
                return


def _try_lock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
