"""Models that come with the package, each a checkpoint directory beside this file; known by their names.

A shipped model's name means the same whatever directory a program runs in. ``./NAME`` and a ``Path`` always mean a
directory.
"""

from __future__ import annotations

import os
from pathlib import Path

from di_engine.errors import EngineConfigError

CONFIG_FILE = "config.json"
"""Makes a directory a checkpoint."""

_HERE = Path(__file__).resolve().parent


def shipped_models() -> tuple[str, ...]:
    """Names of the models that this installation has, in order."""
    return tuple(sorted(file.parent.name for file in _HERE.glob(f"*/{CONFIG_FILE}")))


def resolve_model(model: str | os.PathLike[str]) -> Path:
    """The checkpoint directory of a shipped model's name; any other string, and every path object, is a path.

    Raises:
        EngineConfigError: a checkpoint in the working directory has the name of a shipped model.
    """
    if not isinstance(model, str) or model not in shipped_models():
        return Path(model)
    if os.path.isfile(os.path.join(model, CONFIG_FILE)):
        allowed = (
            f"./{model} for the checkpoint here; {model} is also the name of a model that di-engine ships"
        )
        raise EngineConfigError("model", model, allowed)
    return _HERE / model
