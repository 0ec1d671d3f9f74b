"""Whether a golden file is whole, before anything is made of its contents."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path


def damage(path: Path) -> str | None:
    """What is wrong with a ``.npz`` or ``.json`` file as a file; None when it is whole.

    Readers of arrays meet a damaged archive with whatever they take it for, down to advice about pickled objects.
    """
    if not path.is_file():
        return "not a regular file"
    try:
        return _damage_of_archive(path) if path.suffix == ".npz" else _damage_of_json(path)
    except OSError as error:
        return f"unreadable: {error.strerror or error}"


def _damage_of_archive(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        return f"damaged: not an .npz file that can be read ({error})"
    return None if broken is None else f"damaged: the bytes of {broken} are not those that were written"


def _damage_of_json(path: Path) -> str | None:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        return f"damaged: not JSON ({error})"
    return None
