"""Versions of what an installation is made of, from its metadata: nothing heavy is imported."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata

PACKAGES = ("di-engine", "di-spec", "di-model", "di-cache", "di-scheduler", "di-kernels", "torch", "numpy")


@dataclass(frozen=True)
class Version:
    """A package, or Python itself; ``version`` is None where it is not installed as a package."""

    name: str
    version: str | None

    def __str__(self) -> str:
        return f"{self.name} {self.version or '(not installed)'}"


def installed_versions() -> tuple[Version, ...]:
    """Our packages from the top down, what they stand on, and the interpreter."""
    return (*map(_version, PACKAGES), Version("Python", platform.python_version()))


def _version(name: str) -> Version:
    try:
        return Version(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Version(name, None)
