"""Files that others see whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes its place at ``path`` when the block ends; if the block raises, nothing stays.

    Until then it lies beside ``path`` as ``STEM.RANDOM.part``. Its mode is what the umask leaves, as of any new file:
    ``tempfile`` would make one that only its owner can read.
    """
    part = path.with_name(f"{path.stem}.{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            yield file
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
