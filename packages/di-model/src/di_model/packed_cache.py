"""What lies in a directory of packed weights, and removing what nobody has used for a while.

A file belongs to the contents of a checkpoint: one of a checkpoint that has changed since, or of an older layout, is
never asked for again, and no program can tell. When it was last used tells.
"""

from __future__ import annotations

import contextlib
import re
import stat
import time
from dataclasses import dataclass, replace
from pathlib import Path

from di_model.packed_file import LOCK_SUFFIX, MAGIC, PackedFileError, writer_lock

_NAME = re.compile(r"[0-9a-f]{32}\.(packed|[0-9a-f]{16}\.part)")
_LONGEST_PATH = 4096


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file of packed weights.

    Attributes:
        path: ``KEY.packed``, or ``KEY.RANDOM.part`` while it is written; one that a killed process has left stays so.
        nbytes: of it.
        used: when it was last mapped or written to, in seconds since the epoch.
        checkpoint: directory of the checkpoint that it was packed from; None where that is not known.
        problem: why it could not be read, or not be removed; else None.
    """

    path: Path
    nbytes: int
    used: float
    checkpoint: str | None
    problem: str | None = None

    @property
    def lock(self) -> Path:
        """The file that its writer holds."""
        return _lock_of(self.path)


def kept_files(directory: Path) -> list[KeptFile]:
    """The files of packed weights in a directory, the last used one first. Raises OSError for what is no directory."""
    if not directory.is_dir():
        raise NotADirectoryError(None, "no directory", str(directory))
    found = [_kept(path) for path in directory.iterdir() if _NAME.fullmatch(path.name)]
    return sorted((file for file in found if file is not None), key=lambda file: (-file.used, file.path))


def _is_ours(path: Path) -> bool:
    """Whether it begins as a file of packed weights does; one that was cut short in front of that has only zeros."""
    with path.open("rb") as file:
        start = file.read(len(MAGIC))
    return start in (MAGIC, b"") or (path.suffix == ".part" and not any(start))


def _kept(path: Path) -> KeptFile | None:
    """None where it is no file of packed weights, or has gone since it was listed."""
    problem = None
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or not _is_ours(path):
            return None
    except FileNotFoundError:
        return None
    except OSError as error:  # one that somebody keeps for himself must not hide the others
        problem = error.strerror or str(error)
        status = path.lstat()
    used, checkpoint = _record(_lock_of(path))
    if path.suffix == ".part":
        used = 0.0  # the lock tells of the finished file
    return KeptFile(path, status.st_size, max(status.st_mtime, used), checkpoint, problem)


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name.split(".")[0] + LOCK_SUFFIX)


def _record(lock: Path) -> tuple[float, str | None]:
    """When a lock file was last touched, and the line in it; what is no file, or cannot be read, says nothing."""
    used, line = 0.0, b""
    try:
        status = lock.stat()
        if stat.S_ISREG(status.st_mode):
            used = status.st_mtime
            with lock.open("rb") as file:
                line = file.readline(_LONGEST_PATH)
    except OSError:
        pass
    return used, line.decode("utf-8", errors="replace").strip() or None


def remove_unused(directory: Path, seconds: float) -> list[KeptFile]:
    """Remove files that were not used for so many seconds, and return them; 0: all, whatever their times say.

    Of those that are returned, one with a ``problem`` is still there. The lock goes with the last file of its name.
    Harmless for a process that has mapped a file: it keeps the contents, and the next one to start writes the file
    anew. What is being written stays. Raises OSError for what is no directory.
    """
    due = []
    for file in kept_files(directory):
        if seconds > 0 and time.time() - file.used < seconds:
            continue
        try:
            if file.problem is None:
                with writer_lock(file.lock, 0.0):
                    file.path.unlink()
                    _remove_lone(file.lock)
        except (PackedFileError, FileNotFoundError):
            continue  # it is being written, or has gone
        except OSError as error:
            file = replace(file, problem=f"{error.filename}: {error.strerror}")
        due.append(file)
    return due


def _remove_lone(lock: Path) -> None:
    """Remove a lock that no file is left of; one that another user keeps stays."""
    with contextlib.suppress(OSError):
        if [*lock.parent.glob(f"{lock.stem}.*")] == [lock]:
            lock.unlink()
