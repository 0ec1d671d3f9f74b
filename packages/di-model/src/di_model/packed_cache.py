"""What lies in a directory of packed weights, and removing what nobody has used for a while.

A file belongs to the contents of a checkpoint: one of a checkpoint that has changed since, or of an older layout, is
never asked for again, and no program can tell. When it was last used tells.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from di_model.packed_file import LOCK_SUFFIX, MAGIC, PackedFileError, writer_lock

_KEY = "[0-9a-f]" * 32


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file of packed weights.

    Attributes:
        path: ``KEY.packed``, or ``KEY.RANDOM.part`` while it is written; one that a killed process has left stays so.
        nbytes: of it.
        used: when it was last mapped or written to, in seconds since the epoch.
        checkpoint: directory of the checkpoint that it was packed from; None where that is not known.
    """

    path: Path
    nbytes: int
    used: float
    checkpoint: str | None

    @property
    def lock(self) -> Path:
        """The file that its writer holds."""
        return self.path.with_name(self.path.name.split(".")[0] + LOCK_SUFFIX)


def kept_files(directory: Path) -> list[KeptFile]:
    """The files of packed weights in a directory, the last used one first. Raises OSError for what is no directory."""
    if not directory.is_dir():
        raise NotADirectoryError(None, "no directory", str(directory))
    found = []
    for path in [*directory.glob(f"{_KEY}.packed"), *directory.glob(f"{_KEY}.*.part")]:
        try:
            if path.is_file() and _is_ours(path):
                found.append(_kept(path))
        except FileNotFoundError:
            continue  # since it was listed
    return sorted(found, key=lambda file: (-file.used, file.path))


def _is_ours(path: Path) -> bool:
    """Whether it begins as a file of packed weights does; one that was cut short in front of that has only zeros."""
    with path.open("rb") as file:
        start = file.read(len(MAGIC))
    return start == MAGIC or (path.suffix == ".part" and not any(start))


def _kept(path: Path) -> KeptFile:
    status = path.stat()
    kept = KeptFile(path, status.st_size, status.st_mtime, None)
    if not kept.lock.is_file():
        return kept
    used = status.st_mtime if path.suffix == ".part" else max(status.st_mtime, kept.lock.stat().st_mtime)
    checkpoint = kept.lock.read_text(encoding="utf-8", errors="replace").strip()
    return KeptFile(path, status.st_size, used, checkpoint or None)


def remove_unused(directory: Path, seconds: float) -> list[KeptFile]:
    """Remove files that were not used for so many seconds, and return them; 0: all, whatever their times say.

    The lock goes with the last file of its name. Harmless for a process that has mapped a file: it keeps the contents,
    and the next one to start writes the file anew. What is being written stays. Raises OSError.
    """
    removed = []
    for file in kept_files(directory):
        if seconds > 0 and time.time() - file.used < seconds:
            continue
        try:
            with writer_lock(file.lock, 0.0):
                file.path.unlink()
                if [*directory.glob(f"{file.lock.stem}.*")] == [file.lock]:
                    file.lock.unlink()
        except (PackedFileError, FileNotFoundError):
            continue  # it is being written, or has gone
        removed.append(file)
    return removed
