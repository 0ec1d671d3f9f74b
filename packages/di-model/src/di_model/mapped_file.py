"""Files mapped into memory, and whether what lies at their path is still the file that was mapped."""

from __future__ import annotations

import mmap
import os
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


class FileChangedError(OSError):
    """The file at a path is not the one that was mapped, or was changed since."""


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Which file it is, and in which state: a file that was replaced or written to has another identity."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, file: Path | int) -> FileIdentity:
        """Of the file at a path, or of an open one by its descriptor."""
        status = os.stat(file)
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def check(self, path: Path, file: Path | int | None = None) -> None:
        """Makes sure that the file at ``path`` (or ``file``, opened from there) is this one, unchanged.

        Raises:
            FileChangedError: it is not, or there is none; the message names ``path``.
        """
        try:
            same = FileIdentity.of(path if file is None else file) == self
        except OSError as error:
            raise FileChangedError(error.errno, f"{path}: {error.strerror}") from error
        if not same:
            raise FileChangedError(
                f"{path} was replaced or changed after it was mapped; open the checkpoint anew"
            )


def map_file(path: Path) -> tuple[Tensor, FileIdentity]:
    """All bytes of a file, uint8, in a read-only map, and the identity of the very file that is mapped.

    The private writable map that ``safetensors`` makes is charged against memory as a whole: Linux then refuses a
    shard that is larger than the machine's memory, as the two of the Engram tables are (101 GB each).
    """
    with path.open("rb") as file:
        identity = FileIdentity.of(file.fileno())
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with warnings.catch_warnings():
        # Torch knows no read-only tensors and says so.
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(mapped, dtype=torch.uint8), identity
